#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "mesh/saying.h"
#include "reduce/reduce.h"
#include "schedule/schedule.h"
#include "topology/costs.h"
#include "transport/knobs.h"
#include "transport/transport.h"

namespace ringcoll {

using Json = nlohmann::ordered_json;

namespace {

// JSON is UTF-8, but names of callers, hosts and environments need not be. Other bytes are
// replaced.
constexpr auto kWhatIsNoText = Json::error_handler_t::replace;

// The costs, as a file of RINGCOLL_COSTS has them, and where they come from.
Json to_json(const Costs& costs, double measuring_ms) {
  Json json = Json::parse(costs_json(costs.levels));
  json["source"] = costs.source;
  json["measuring_ms"] = measuring_ms;
  return json;
}

// The costs in the file of RINGCOLL_COSTS, or why they cannot be read. Null if `path` is empty.
Json given_costs(const std::string& path) {
  if (path.empty()) return {};
  try {
    Json json = Json::parse(costs_json(read_costs(path)));
    json["file"] = path;
    return json;
  } catch (const Error& error) {
    return {{"file", path}, {"error", error.what()}};
  }
}

}  // namespace

std::string stats_json(Engine& engine) {
  Communicator& comm = engine.comm();
  const MessageCounts messages = engine.post()->counts();
  const Counters& c = comm.counters();
  Json links = Json::array(), levels = Json::array();
  for (int level = 0; level < comm.topology().levels(); level++)
    levels.push_back(comm.topology().level_name(level));
  for (Rank r = 0; r < comm.size(); r++) {
    const Location& at = comm.topology().at(r);
    Json groups = Json::array();
    for (int level = 0; level < comm.topology().levels(); level++)
      groups.push_back(comm.topology().group_of(level, r));
    links.push_back({{"rank", r},
                     {"host", at.host_name},
                     {"pid", at.pid},
                     {"numa_node", at.numa_node},
                     {"groups", groups},
                     {"transport", comm.group().transport_of(r)},
                     {"port", comm.group().port_of(r)}});
  }
  return Json{{"name", comm.name()},
              {"rank", comm.rank()},
              {"size", comm.size()},
              {"hosts", comm.topology().hosts()},
              {"levels", levels},
              {"topology", comm.topology().source()},
              {"network", comm.group().mesh().network()},
              {"ring_order", comm.topology().ring_order()},
              {"peers", links},
              {"costs", to_json(comm.costs(), comm.group().mesh().measuring_ms())},
              {"calls", uint64_t{c.calls}},
              {"messages_sent", uint64_t{c.messages_sent}},
              {"bytes_sent", uint64_t{c.bytes_sent}},
              {"bytes_received", uint64_t{c.bytes_received}},
              {"bytes_sent_zero_copy", uint64_t{c.bytes_sent_zero_copy}},
              {"bytes_sent_copied", uint64_t{c.bytes_sent_copied}},
              {"bytes_packed", uint64_t{c.bytes_packed}},
              {"bytes_unpacked", uint64_t{c.bytes_unpacked}},
              {"bytes_combined", uint64_t{c.bytes_combined}},
              {"blocked_waits", uint64_t{comm.channels().blocked_waits()}},
              {"sends", uint64_t{messages.sent}},
              {"send_bytes", uint64_t{messages.sent_bytes}},
              {"receives", uint64_t{messages.received}},
              {"receive_bytes", uint64_t{messages.received_bytes}},
              {"receives_kept", uint64_t{messages.kept}},
              {"receives_read", uint64_t{messages.read}},
              {"receives_helped", uint64_t{messages.helped}},
              {"send_bytes_packed", uint64_t{messages.packed_bytes}},
              {"receive_bytes_unpacked", uint64_t{messages.unpacked_bytes}},
              {"rejected_connections", comm.group().mesh().rejected_connections()}}
      .dump(-1, ' ', false, kWhatIsNoText);
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
                             {"where", name_of(row.where)}});
  for (const Knob& knob : all_knobs().describe())
    knob_rows.push_back({{"name", knob.name},
                         {"type", knob.type},
                         {"default", knob.default_value},
                         {"range", knob.range},
                         {"owner", knob.owner},
                         {"agreement", knob.agreement},
                         {"help", knob.help},
                         {"value", knob.value}});
  return Json{{"version", RINGCOLL_VERSION},
              {"release", own_release()},
              {"abi", RINGCOLL_ABI_VERSION},
              {"abi_revision", RINGCOLL_ABI_REVISION},
              {"simd", simd_target()},
              {"transports", transport_rows},
              {"schedules", schedule_rows},
              {"knobs", knob_rows},
              {"costs", given_costs(config.costs)}}
      .dump(-1, ' ', false, kWhatIsNoText);
}

}  // namespace ringcoll
