#include "topology/costs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json_depth.h"

namespace ringcoll {
namespace {

using Json = nlohmann::ordered_json;

struct Field {
  const char* name;
  double LevelCost::* value;
};
constexpr Field kFields[] = {{"latency_us", &LevelCost::latency_us},
                             {"rank_bytes_per_us", &LevelCost::rank_bytes_per_us},
                             {"group_bytes_per_us", &LevelCost::group_bytes_per_us}};
constexpr size_t kMaxCostsBytes = 1 << 20;
constexpr int kMaxCostsDepth = 4;
// stats() has these beside the levels; they are not read.
constexpr std::string_view kRemarks[] = {"source", "measuring_ms"};

LevelCost parse_level(const std::string& level, const Json& json, std::string_view origin) {
  check(json.is_object(), Code::kInvalidArgument, "{}: levels.{} is no object", origin, level);
  LevelCost cost{level};
  for (const auto& [name, unused] : json.items())
    check(std::ranges::any_of(kFields, [&](const Field& f) { return name == f.name; }),
          Code::kInvalidArgument,
          "{}: levels.{}.{} is not known; there is latency_us, rank_bytes_per_us and "
          "group_bytes_per_us",
          origin, level, name);
  for (const Field& field : kFields) {
    auto found = json.find(field.name);
    check(found != json.end(), Code::kInvalidArgument, "{}: levels.{}.{} is missing", origin, level,
          field.name);
    double value = found->is_number() ? found->get<double>() : NAN;
    check(std::isfinite(value) && value > 0, Code::kInvalidArgument,
          "{}: levels.{}.{} is {}, and must be a number above 0", origin, level, field.name,
          found->dump());
    cost.*field.value = value;
  }
  return cost;
}

// An interruption makes a link look slower, so in doubt the better value is right.
enum class Better { kLess, kMore };

// No link has such costs: a number beyond these limits is not a measurement.
constexpr double kMostLatencyUs = 1e7;
constexpr double kMostBytesPerUs = 1e7;

/// The median; 0 if there are no samples.
class Middle {
 public:
  Middle(Better better, double most) : better_(better), most_(most) {}
  void add(double value) {
    if (is_sample(value)) values_.push_back(value);
  }
  bool is_sample(double value) const { return value > 0 && value <= most_; }
  double value() {
    if (values_.empty()) return 0;
    size_t at = better_ == Better::kLess ? (values_.size() - 1) / 2 : values_.size() / 2;
    std::ranges::nth_element(values_, values_.begin() + static_cast<ptrdiff_t>(at));
    return values_[at];
  }

 private:
  Better better_;
  double most_;
  std::vector<double> values_;
};

/// Collects the samples of one level.
class LevelMiddle {
 public:
  LevelMiddle(std::span<const std::vector<LevelSamples>> samples, int level)
      : samples_(samples), level_(level) {}

  void add(const Section& section) {
    for (Rank rank : section.ranks)
      for (int round = 0; round < kMeasuringRounds; round++)
        latency_.add(of(rank, round).latency_us);
    for (const CellPair& pair : pairs_of(section, level_)) {
      auto a = section.cell(pair.a), b = section.cell(pair.b);
      size_t lanes = std::min(a.size(), b.size());
      for (auto cell : {a, b})
        for (Rank rank : cell.first(lanes)) rank_.add(of(rank, pair.round).rank_bytes_per_us);
      if (level_ == 0) continue;
      add_group(a.first(lanes), pair.round, lanes);
      add_group(b.first(lanes), pair.round, lanes);
    }
    // All ranks of a host share its memory, also an odd one without a partner.
    if (level_ == 0 && section.cells() > 1) add_group(section.ranks, 0, section.cells());
  }

  struct Found {
    bool latency, rates;
  };
  /// Leaves a cost as it is if there are no samples of it.
  Found write(LevelCost* cost) {
    double latency = latency_.value(), rank = rank_.value(), group = group_.value();
    if (rank == 0) rank = lane_.value();
    if (group == 0) group = rank;
    if (latency > 0) cost->latency_us = latency;
    if (rank > 0) cost->rank_bytes_per_us = rank;
    if (group > 0) cost->group_bytes_per_us = group;
    return {latency > 0, rank > 0};
  }

 private:
  const LinkSample& of(Rank rank, int round) const { return samples_[rank][level_][round]; }
  // Adds the rate of a group's lanes together. Lanes without a sample count as an average one.
  void add_group(std::span<const Rank> ranks, int round, size_t lanes) {
    double sum = 0;
    size_t present = 0;
    for (Rank rank : ranks) {
      double rate = of(rank, round).lane_bytes_per_us;
      if (!lane_.is_sample(rate)) continue;
      lane_.add(rate);
      sum += rate;
      present++;
    }
    if (present > 0 && present >= lanes / 2)
      group_.add(sum * static_cast<double>(lanes) / static_cast<double>(present));
  }

  std::span<const std::vector<LevelSamples>> samples_;
  int level_;
  Middle latency_{Better::kLess, kMostLatencyUs};
  Middle rank_{Better::kMore, kMostBytesPerUs};
  Middle lane_{Better::kMore, kMostBytesPerUs};
  Middle group_{Better::kMore, kMostBytesPerUs * 1024};
};

// "measured", or each source with its levels: "RINGCOLL_COSTS=x (host), measured (network latency),
// defaults (network rates)".
std::string sources(const std::vector<std::pair<std::string, std::string>>& of_levels) {
  std::vector<std::pair<std::string, std::vector<std::string>>> grouped;  // levels by source
  for (const auto& [level, source] : of_levels) {
    auto found = std::ranges::find_if(grouped, [&](auto& entry) { return entry.first == source; });
    if (found == grouped.end()) found = grouped.insert(grouped.end(), {source, {}});
    found->second.push_back(level);
  }
  if (grouped.size() == 1) return grouped.front().first;
  std::string text;
  for (const auto& [source, levels] : grouped)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", source, fmt::join(levels, ", "));
  return text;
}

}  // namespace

std::vector<LevelCost> parse_costs(std::string_view text, std::string_view origin) {
  Json json;
  try {
    json = Json::parse(text, no_deeper_than(kMaxCostsDepth, origin));
  } catch (const Json::exception& error) {
    throw Error(Code::kInvalidArgument, fmt::format("{}: not JSON: {}", origin, error.what()));
  }
  check(json.is_object() && json.contains("levels") && json["levels"].is_object(),
        Code::kInvalidArgument, "{}: it must be an object with an object \"levels\"", origin);
  for (const auto& [name, unused] : json.items())
    check(name == "levels" || std::ranges::count(kRemarks, std::string_view(name)) > 0,
          Code::kInvalidArgument, "{}: \"{}\" is not known; there is \"levels\"", origin, name);
  std::vector<LevelCost> levels;
  for (const auto& [name, cost] : json["levels"].items())
    levels.push_back(parse_level(name, cost, origin));
  return levels;
}

std::vector<LevelCost> read_costs(const std::string& path) {
  if (path.empty()) return {};
  std::string origin = "RINGCOLL_COSTS=" + path, failure;
  auto text = read_small_file(path, kMaxCostsBytes, &failure);
  check(text.has_value(), Code::kInvalidArgument, "{}: {}", origin, failure);
  return parse_costs(*text, origin);
}

std::string costs_json(std::span<const LevelCost> levels) {
  Json json = Json::object();
  for (const LevelCost& cost : levels)
    for (const Field& field : kFields) json[cost.level][field.name] = cost.*field.value;
  return Json{{"levels", json}}.dump();
}

std::string describe(std::span<const LevelCost> levels) {
  // Two digits below 100, and no exponent from there on.
  auto brief = [](double x) {
    return x < 99.5 ? fmt::format("{:.2g}", x) : fmt::format("{:.0f}", x);
  };
  std::string text;
  for (const LevelCost& cost : levels)
    text += fmt::format("{}{} {} us {} GB/s", text.empty() ? "" : ", ", cost.level,
                        brief(cost.latency_us), brief(cost.rank_bytes_per_us / 1e3));
  return text;
}

// Orders of magnitude of shared memory and TCP on a machine of 2020.
LevelCost default_cost(const std::string& level, bool is_host, bool crowded) {
  if (!is_host) return {level, 25, 1500, 1500};
  if (crowded) return {level, 8, 4000, 8000};  // a message is a change of context
  return {level, 0.3, 8000, 16000};
}

std::vector<Section> sections_of(const Topology& topology, int level) {
  std::vector<Section> sections;
  auto cell_of = [&](Rank rank) { return level == 0 ? rank : topology.group_of(level - 1, rank); };
  int section = -1, cell = -1;
  for (Rank rank : topology.ring_order()) {
    bool opens = std::exchange(section, topology.group_of(level, rank)) != section;
    if (opens) sections.emplace_back();
    auto& [ranks, begin] = sections.back();
    if (std::exchange(cell, cell_of(rank)) != cell || opens) begin.push_back(ranks.size());
    ranks.push_back(rank);
  }
  return sections;
}

std::vector<CellPair> pairs_of(const Section& section, int level) {
  std::vector<CellPair> pairs;
  size_t cells = section.cells();
  for (size_t c = 0; c + 1 < cells; c += 2) pairs.push_back({c, c + 1, 0});
  if (level > 0 && cells > 1 && cells % 2 == 1) pairs.push_back({cells - 2, cells - 1, 1});
  return pairs;
}

Costs agree_on_costs(const Topology& topology, std::span<const std::vector<LevelSamples>> samples,
                     std::span<const LevelCost> given, const std::string& given_source) {
  Costs costs;
  std::vector<std::pair<std::string, std::string>> from;
  for (int level = 0; level < topology.levels(); level++) {
    const std::string& name = topology.level_name(level);
    auto known = std::ranges::find(given, name, &LevelCost::level);
    if (known != given.end()) {
      costs.levels.push_back(*known);
      from.emplace_back(name, given_source);
      continue;
    }
    LevelMiddle middle(samples, level);
    for (const Section& section : sections_of(topology, level)) middle.add(section);
    costs.levels.push_back(default_cost(name, level <= topology.host_level(), topology.crowded()));
    auto found = middle.write(&costs.levels.back());
    auto source = [](bool measured) { return measured ? "measured" : "defaults"; };
    if (found.latency == found.rates) {
      from.emplace_back(name, source(found.latency));
    } else {
      from.emplace_back(name + " latency", source(found.latency));
      from.emplace_back(name + " rates", source(found.rates));
    }
  }
  costs.source = sources(from);
  return costs;
}

Costs costs_of_part(const Topology& part, const Costs& whole) {
  Costs costs{.levels = {}, .source = whole.source};
  for (int level = 0; level < part.levels(); level++) {
    const std::string& name = part.level_name(level);
    auto known = std::ranges::find(whole.levels, name, &LevelCost::level);
    if (known == whole.levels.end() && level < part.host_level())
      known = std::ranges::find(whole.levels, "host", &LevelCost::level);
    invariant(known != whole.levels.end(), "no cost of the level {}", name);
    costs.levels.push_back(*known);
    costs.levels.back().level = name;
  }
  return costs;
}

}  // namespace ringcoll
