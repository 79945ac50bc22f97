// What links cost, level by level of the topology: a pure value, measured when a job starts
// (mesh/measure.h) or given by hand in a file. docs/algorithms.md, "Where the costs come from".
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "topology/topology.h"

namespace ringcoll {

/// Links of one level: between two ranks whose nearest common group is of this level.
struct LevelCost {
  std::string level;  // "host", "network", …
  /// From the send on one rank to its receipt on the other, smallest message.
  double latency_us = 0;
  /// What one rank sends and receives at the same time, with nobody else at work.
  double rank_bytes_per_us = 0;
  /// Level 0: what a group's ranks together move inside it. Level k > 0: what one group of level
  /// k-1 (a socket, a host, a leaf …) sends, and at the same time receives, in all, up through
  /// level k.
  double group_bytes_per_us = 0;

  bool operator==(const LevelCost&) const = default;
};

struct Costs {
  std::vector<LevelCost> levels;  // those of the topology
  std::string source;             // "measured", "RINGCOLL_COSTS=…", "defaults", or which for what
};

/// The levels in `text`, the content of a file of costs: {"levels": {"host": {"latency_us": 0.3,
/// "rank_bytes_per_us": 8000, "group_bytes_per_us": 16000}, …}}. Not all levels need be there; what
/// stats() says in "costs" is such a file too. Throws Error(kInvalidArgument) that names `origin`
/// and the field.
std::vector<LevelCost> parse_costs(std::string_view text, std::string_view origin);
/// The same, of the file at `path` (RINGCOLL_COSTS); none if `path` is empty.
std::vector<LevelCost> read_costs(const std::string& path);
/// What parse_costs() reads.
std::string costs_json(std::span<const LevelCost> levels);
/// "host 0.4 us 9.1 GB/s, network 31 us 0.12 GB/s", the rates those of one rank.
std::string describe(std::span<const LevelCost> levels);

/// What is assumed of a level that was not measured. `crowded`: hosts have more ranks than CPUs.
LevelCost default_cost(const std::string& level, bool is_host, bool crowded);

/// Who measures with whom. A section is one group of a level, made of the cells below it: groups of
/// the level before, or at level 0 single ranks. Each is a stretch of the ring.
struct Section {
  std::vector<Rank> ranks;    // in ring order
  std::vector<size_t> begin;  // of each cell, in `ranks`

  size_t cells() const { return begin.size(); }
  std::span<const Rank> cell(size_t number) const {
    size_t end = number + 1 < begin.size() ? begin[number + 1] : ranks.size();
    return std::span(ranks).subspan(begin[number], end - begin[number]);
  }
};
std::vector<Section> sections_of(const Topology& topology, int level);

/// Two cells of a section whose lanes (the i-th rank of one, the i-th of the other) measure
/// together. Of an odd number of cells above level 0 the last is measured in a second round.
struct CellPair {
  size_t a = 0, b = 0;
  int round = 0;
};
inline constexpr int kMeasuringRounds = 2;
std::vector<CellPair> pairs_of(const Section& section, int level);

/// What one rank measured on its link of one level and round. 0: nothing, or it saw itself that
/// something was wrong.
struct LinkSample {
  double latency_us = 0;
  double rank_bytes_per_us = 0;  // received, by the pairs that worked alone
  double lane_bytes_per_us = 0;  // received while all pairs worked
};
using LevelSamples = std::array<LinkSample, kMeasuringRounds>;

/// The costs that all ranks make alike of all ranks' samples (by rank, then level). For each level:
/// what is `given` for it, else the median over its pairs, else the default. An interruption makes
/// a link slower and never faster, so that of an even number the better middle counts; numbers that
/// cannot be (zero, negative, infinite, not a number, absurd) do not count at all.
Costs agree_on_costs(const Topology& topology, std::span<const std::vector<LevelSamples>> samples,
                     std::span<const LevelCost> given, const std::string& given_source,
                     bool crowded);
/// Those of some of the ranks. What their hosts are made up of may be no level of `whole` (of a job
/// on both sockets, those on one, which has several caches): there links are as inside its hosts.
Costs costs_of_part(const Topology& part, const Costs& whole);

}  // namespace ringcoll
