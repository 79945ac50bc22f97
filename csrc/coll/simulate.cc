#include "coll/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_depth.h"
#include "coll/select.h"
#include "coll/terrain.h"
#include "topology/costs.h"
#include "transport/knobs.h"

namespace ringcoll {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostRanks = 16384;
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr size_t kMostSizes = 1000;
constexpr int kMostDepth = 4;
// A request may ask for the messages of a schedule that has at most so many steps.
constexpr int64_t kMostMessages = int64_t{4} << 20;

/// An object of the request. `path` names it in errors, for example "levels[0]".
class Fields {
 public:
  Fields(const Json& json, std::string path, std::span<const std::string_view> known)
      : json_(json), path_(std::move(path)) {
    check(json.is_object(), Code::kInvalidArgument, "simulate: {} is no object",
          path_.empty() ? "the request" : path_);
    for (const auto& [name, unused] : json.items())
      check(std::ranges::find(known, std::string_view(name)) != known.end(), Code::kInvalidArgument,
            "simulate: {} is not known", at(name));
  }

  std::string at(std::string_view name) const {
    return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
  }
  /// Null if the field is missing.
  const Json* find(const char* name) const {
    auto found = json_.find(name);
    return found == json_.end() ? nullptr : &*found;
  }
  const Json& need(const char* name) const {
    const Json* found = find(name);
    check(found, Code::kInvalidArgument, "simulate: {} is missing", at(name));
    return *found;
  }
  std::string text(const char* name) const {
    const Json& value = need(name);
    check(value.is_string(), Code::kInvalidArgument, "simulate: {} is {}: a string is wanted",
          at(name), value.dump());
    return value.get<std::string>();
  }
  /// Returns `otherwise` if the field is missing.
  double rate(const char* name, double otherwise) const {
    const Json* found = find(name);
    if (!found) return otherwise;
    double number = found->is_number() ? found->get<double>() : NAN;
    check(std::isfinite(number) && number > 0, Code::kInvalidArgument,
          "simulate: {} is {}: a number above 0 is wanted", at(name), found->dump());
    return number;
  }
  int64_t whole(const char* name, int64_t least, int64_t most) const {
    return whole_number(need(name), at(name), least, most);
  }
  /// Returns `otherwise` if the field is missing.
  int64_t whole(const char* name, int64_t least, int64_t most, int64_t otherwise) const {
    return find(name) ? whole(name, least, most) : otherwise;
  }
  bool flag(const char* name) const {
    const Json* value = find(name);
    check(!value || value->is_boolean(), Code::kInvalidArgument,
          "simulate: {} is neither true nor false", at(name));
    return value && value->get<bool>();
  }
  static int64_t whole_number(const Json& value, const std::string& path, int64_t least,
                              int64_t most) {
    bool fits = value.is_number_integer() && value.get<double>() >= static_cast<double>(least) &&
                value.get<double>() <= static_cast<double>(most);
    check(fits, Code::kInvalidArgument,
          "simulate: {} is {}: a whole number from {} to {} is wanted", path, value.dump(), least,
          most);
    return value.get<int64_t>();
  }

 private:
  const Json& json_;
  std::string path_;
};

const Json& array_of(const Fields& request, const char* name, size_t most) {
  const Json& array = request.need(name);
  check(array.is_array() && !array.empty() && array.size() <= most, Code::kInvalidArgument,
        "simulate: {}: an array of 1 to {} is wanted", name, most);
  return array;
}

Groups groups_of(int64_t ranks_each, int64_t ranks) {
  std::vector<Rank> firsts;
  for (int64_t first = 0; first < ranks; first += ranks_each)
    firsts.push_back(static_cast<Rank>(first));
  return {std::move(firsts), static_cast<Rank>(ranks)};
}

// The ranks of a host take its ports in turn, as ranks do that are not bound to cores. No host has
// more ports than ranks.
std::vector<Rank> ports_of(const Groups& hosts, int64_t ports_each) {
  std::vector<Rank> ports;
  Rank first = 0;
  for (Rank host = 0; host < hosts.count(); host++) {
    auto own = static_cast<Rank>(std::min<int64_t>(ports_each, hosts.size_of(host)));
    for (Rank i = 0; i < hosts.size_of(host); i++) ports.push_back(first + i % own);
    first += own;
  }
  return ports;
}

// Levels below hosts have certain names (kBelowHosts). The first other level is that of hosts.
size_t host_level_of(const Json& levels) {
  auto is_below = [](const Json& level) {
    auto name = level.is_object() ? level.find("level") : level.end();
    return name != level.end() && name->is_string() &&
           std::ranges::count(kBelowHosts, name->get<std::string>()) > 0;
  };
  return std::ranges::find_if_not(levels.begin(), levels.end() - 1, is_below) - levels.begin();
}

Fabric fabric_of(const Fields& request) {
  constexpr std::array<std::string_view, 6> kKnown = {
      "level", "ranks", "latency_us", "rank_bytes_per_us", "group_bytes_per_us", "ports"};
  Fabric fabric;
  fabric.crowded = request.flag("crowded");
  fabric.combined_bytes_per_us = request.rate("combined_bytes_per_us", kCombinedBytesPerUs);
  const Json& levels = array_of(request, "levels", 16);
  fabric.host_level = host_level_of(levels);
  std::vector<int64_t> ranks;
  int64_t ports = 1;
  for (size_t i = 0; i < levels.size(); i++) {
    Fields level(levels[i], fmt::format("levels[{}]", i), kKnown);
    ranks.push_back(level.whole("ranks", 1, kMostRanks));
    // A group consists of whole groups of the level below. Only the group of all ranks may have a
    // last one that is partly filled.
    bool is_last = i + 1 == levels.size();
    check(i == 0 || (ranks[i] >= ranks[i - 1] && (is_last || ranks[i] % ranks[i - 1] == 0)),
          Code::kInvalidArgument,
          "simulate: {} is {}: a multiple of the {} ranks of {} is wanted (the last level: no "
          "fewer)",
          level.at("ranks"), ranks[i], i ? ranks[i - 1] : 0,
          i ? levels[i - 1]["level"].dump() : "");
    check(i == fabric.host_level || !level.find("ports"), Code::kInvalidArgument,
          "simulate: {}: hosts have ports, and they are levels[{}]", level.at("ports"),
          fabric.host_level);
    if (i == fabric.host_level) ports = level.whole("ports", 1, kMostRanks, 1);
    LevelCost cost = default_cost(level.text("level"), i <= fabric.host_level, fabric.crowded);
    double rank = level.rate("rank_bytes_per_us", cost.rank_bytes_per_us);
    double group = level.find("rank_bytes_per_us") ? rank : cost.group_bytes_per_us;
    fabric.links.push_back(
        {level.rate("latency_us", cost.latency_us), rank, level.rate("group_bytes_per_us", group)});
  }
  for (int64_t each : ranks) fabric.groups.push_back(groups_of(each, ranks.back()));
  fabric.ports = ports_of(fabric.hosts(), ports);
  return fabric;
}

template <typename Value>
Value named(const Fields& request, const char* name, int count) {
  std::string text = request.text(name), names;
  for (int i = 0; i < count; i++) {
    auto value = static_cast<Value>(i);
    if (text == name_of(value)) return value;
    names += fmt::format("{}{}", i ? ", " : "", name_of(value));
  }
  throw Error(Code::kInvalidArgument,
              fmt::format("simulate: {} is \"{}\"; there is {}", name, text, names));
}

Terrain terrain_of(const Fields& request) {
  // No environment is read, so all knobs have their defaults.
  Config defaults = read_config([](const char*) -> const char* { return nullptr; });
  Terrain terrain;
  terrain.fabric = fabric_of(request);
  terrain.one_domain = terrain.fabric.hosts().count() == 1;
  terrain.segment_bytes = request.whole("segment_bytes", 0, kMostBytes, defaults.segment_bytes);
  if (request.find("algorithm")) terrain.algorithm = request.text("algorithm");
  check_algorithm(terrain.algorithm);
  terrain.arena_bytes = request.whole("arena_bytes", 1, kMostBytes, defaults.arena_bytes);
  terrain.slots = request.whole("slots", 0, 64, defaults.slots);
  return terrain;
}

/// The least that must cross a host's port, as a part of the vector: in the busier direction, of
/// the host with the most. Empty: nothing must.
std::optional<double> least_over_a_port(Collective collective, const Groups& hosts) {
  double count = hosts.count(), ranks = hosts.end(hosts.count() - 1);
  if (hosts.count() == 1) return {};
  double largest = 0, smallest = ranks;
  for (Rank host = 0; host < hosts.count(); host++) {
    largest = std::max<double>(largest, hosts.size_of(host));
    smallest = std::min<double>(smallest, hosts.size_of(host));
  }
  const CollectiveTraits& traits = traits_of(collective);
  if (!traits.has_data()) return {};
  if (traits.shares_result()) return 2 * (count - 1) / count;
  if (traits.is_vector()) return 1;
  if (traits.exchanges()) {  // the vector is what each rank sends
    double most = 0;
    for (double own : {largest, smallest}) most = std::max(most, own * (ranks - own) / ranks);
    return most;
  }
  // The port of one host carries all chunks of other hosts: the host of the root, which is rank 0,
  // or else the smallest host.
  return (ranks - (traits.has_root ? hosts.size_of(0) : smallest)) / ranks;
}

/// The choice for a call whose whole vector has `bytes` (docs/algorithms.md).
Choice choose(Selector& selector, Collective collective, DataType dtype, int64_t bytes) {
  Call call;
  call.collective = collective;
  call.dtype = dtype;
  auto element = static_cast<int64_t>(size_of(dtype));
  if (call.is_vector()) return selector.choose(call, bytes / element, 1);
  int64_t ranks = selector.terrain().fabric.ranks();
  int64_t lanes = call.exchanges() ? 2 * ranks : ranks;
  return selector.choose(call, (bytes / element + ranks - 1) / ranks, static_cast<size_t>(lanes));
}

Json size_json(Selector& selector, Collective collective, DataType dtype, int64_t bytes) {
  const Fabric& fabric = selector.terrain().fabric;
  Json rows = Json::array();
  for (const ScheduleRow& row : schedules()) {
    if (row.collective != collective || !is_offered(row, fabric, selector.terrain().one_domain))
      continue;
    auto price =
        selector.estimate(row, traits_of(collective).has_data() ? static_cast<double>(bytes) : 0);
    Json entry = {{"name", row.name}, {"microseconds", nullptr}};
    if (price)
      entry.update({{"microseconds", price->microseconds},
                    {"piece_bytes", std::min(price->piece_bytes, bytes)},
                    {"pieces",
                     std::max<int64_t>(1, (bytes + price->piece_bytes - 1) / price->piece_bytes)}});
    rows.push_back(std::move(entry));
  }
  Json bound;
  auto least = least_over_a_port(collective, fabric.hosts());
  if (least)
    bound = *least * static_cast<double>(bytes) /
            fabric.links[fabric.host_level + 1].group_bytes_per_us;
  Choice choice = choose(selector, collective, dtype, bytes);
  return {{"bytes", bytes}, {"chosen", choice.row->name}, {"bound_us", bound}, {"rows", rows}};
}

Json rounds_json(const Fields& request, const Fabric& fabric, Collective collective) {
  std::string text = request.text("algorithm");
  std::string name = ringcoll::named(text, collective).value_or(text);
  const ScheduleRow* row = find_schedule(collective, name);
  check(row, Code::kInvalidArgument,
        "simulate: messages are those of the row that algorithm names, and \"{}\" is none of {}",
        name, name_of(collective));
  Problem problem{.size = fabric.ranks(), .levels = fabric.levels()};
  auto traffic = traffic_of(*row, problem, kMostMessages, row->where == Where::kOneDomain);
  check(!traffic.empty() || fabric.ranks() == 1, Code::kInvalidArgument,
        "simulate: messages: {} of {} ranks has more than {}", name, fabric.ranks(), kMostMessages);
  Json rounds = Json::array();
  for (const Traffic& round : traffic) {
    Json messages = Json::array();
    for (const Message& message : round.messages) {
      messages.push_back(message.from);
      messages.push_back(message.to);
      messages.push_back(message.share);
    }
    rounds.push_back(std::move(messages));
  }
  return rounds;
}

}  // namespace

std::string simulate_json(std::string_view text) {
  constexpr std::array<std::string_view, 11> kKnown = {
      "collective",    "dtype", "levels",      "sizes",    "algorithm",
      "segment_bytes", "slots", "arena_bytes", "messages", "combined_bytes_per_us",
      "crowded"};
  Json json;
  try {
    json = Json::parse(text, no_deeper_than(kMostDepth, "simulate: the request"));
  } catch (const Json::exception& error) {
    throw Error(Code::kInvalidArgument,
                fmt::format("simulate: the request is not JSON: {}", error.what()));
  }
  Fields request(json, "", kKnown);
  auto collective = named<Collective>(request, "collective", RC_COLLECTIVE_COUNT);
  auto dtype = RC_FLOAT32;
  if (request.find("dtype")) dtype = named<DataType>(request, "dtype", RC_DTYPE_COUNT);
  std::vector<int64_t> sizes;
  for (const Json& size : array_of(request, "sizes", kMostSizes))
    sizes.push_back(Fields::whole_number(size, fmt::format("sizes[{}]", sizes.size()),
                                         static_cast<int64_t>(size_of(dtype)), kMostBytes));
  bool with_messages = request.flag("messages");
  Selector selector(terrain_of(request));
  const Fabric& fabric = selector.terrain().fabric;
  Json levels = json["levels"];
  for (size_t i = 0; i < levels.size(); i++) {
    levels[i]["latency_us"] = fabric.links[i].latency_us;
    levels[i]["rank_bytes_per_us"] = fabric.links[i].rank_bytes_per_us;
    levels[i]["group_bytes_per_us"] = fabric.links[i].group_bytes_per_us;
  }
  Json answer = {{"collective", name_of(collective)},
                 {"dtype", name_of(dtype)},
                 {"ranks", fabric.ranks()},
                 {"hosts", fabric.hosts().count()},
                 {"levels", levels},
                 {"slots", selector.slots()},
                 {"sizes", Json::array()}};
  for (int64_t bytes : sizes)
    answer["sizes"].push_back(size_json(selector, collective, dtype, bytes));
  if (with_messages) answer["rounds"] = rounds_json(request, fabric, collective);
  return answer.dump();
}

}  // namespace ringcoll
