#include "transport/knobs.h"

#include "base/error.h"
#include "transport/transport.h"

namespace ringcoll {
namespace {

KnobRow choice_of_transport() {
  std::vector<std::string> words = {"auto"};
  for (const TransportRow& transport : transports()) words.emplace_back(transport.name);
  return {"RINGCOLL_TRANSPORT",
          "mesh",
          Agreement::kOwn,
          knob::Text{&Config::transport, std::move(words)},
          "auto",
          "the transport that every link must use; the start fails where it cannot. auto: the "
          "nearest that works, for each pair of ranks"};
}

std::vector<KnobRow> join() {
  std::vector<KnobRow> rows = {choice_of_transport()};
  rows.insert(rows.end(), core_knobs().begin(), core_knobs().end());
  for (const TransportRow& transport : transports()) {
    if (!transport.knobs) continue;
    for (const KnobRow& row : transport.knobs()) {
      invariant(row.owner == transport.name, "{} says it is of {}, and comes with {}", row.name,
                row.owner, transport.name);
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace

const KnobTable& all_knobs() {
  static const KnobTable table(join());
  return table;
}

Config read_config(const Getenv& environment) { return all_knobs().read(environment); }
Config read_config(const Getenv& environment, std::optional<Error>* refused) {
  return all_knobs().read(environment, refused);
}

}  // namespace ringcoll
