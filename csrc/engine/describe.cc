#include <nlohmann/json.hpp>

#include "base/config.h"
#include "engine/engine.h"
#include "reduce/reduce.h"
#include "schedule/schedule.h"
#include "transport/transport.h"

namespace ringcoll {

using Json = nlohmann::ordered_json;

std::string stats_json(Communicator& comm) {
  const Counters& c = comm.counters();
  Json links = Json::array();
  for (Rank r = 0; r < comm.size(); r++) {
    const Location& at = comm.topology().at(r);
    links.push_back({{"rank", r},
                     {"host", at.host_name},
                     {"pid", at.pid},
                     {"numa_node", at.numa_node},
                     {"transport", comm.transport_of(r)}});
  }
  return Json{{"name", comm.name()},
              {"rank", comm.rank()},
              {"size", comm.size()},
              {"hosts", comm.topology().hosts()},
              {"ring_order", comm.topology().ring_order()},
              {"peers", links},
              {"calls", c.calls},
              {"messages_sent", c.messages_sent},
              {"bytes_sent", c.bytes_sent},
              {"bytes_received", c.bytes_received},
              {"bytes_sent_zero_copy", c.bytes_sent_zero_copy},
              {"bytes_packed", c.bytes_packed},
              {"bytes_unpacked", c.bytes_unpacked},
              {"bytes_combined", c.bytes_combined},
              {"blocked_waits", c.blocked_waits},
              {"cpu_moves", c.cpu_moves},
              {"rejected_connections", comm.rejected_connections()}}
      .dump();
}

std::string info_json() {
  Config config = read_config();
  Json transport_rows = Json::array(), schedule_rows = Json::array(), knob_rows = Json::array();
  for (const TransportRow& row : transports()) {
    Probe probe = row.probe(config);
    transport_rows.push_back({{"name", row.name},
                              {"help", row.help},
                              {"automatic", row.automatic},
                              {"usable", probe.usable},
                              {"reason", probe.detail},
                              {"found", row.found ? Json::parse(row.found(config)) : Json()}});
  }
  for (const ScheduleRow& row : schedules())
    schedule_rows.push_back({{"collective", name_of(row.collective)},
                             {"name", row.name},
                             {"summary", row.summary},
                             {"cost", row.cost},
                             {"domain_only", row.domain_only}});
  for (const Knob& knob : describe_knobs())
    knob_rows.push_back({{"name", knob.name},
                         {"type", knob.type},
                         {"default", knob.default_value},
                         {"range", knob.range},
                         {"help", knob.help},
                         {"value", knob.value}});
  return Json{{"version", RINGCOLL_VERSION}, {"abi", RINGCOLL_ABI_VERSION},
              {"simd", simd_target()},       {"transports", transport_rows},
              {"schedules", schedule_rows},  {"knobs", knob_rows}}
      .dump();
}

}  // namespace ringcoll
