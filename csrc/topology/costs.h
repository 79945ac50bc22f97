// The costs of links at each level of the topology. They are pure values, measured when a job
// starts (measure/measure.h) or read from a file. See docs/algorithms.md, "Where the costs come
// from".
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "topology/topology.h"

namespace ringcoll {

/// The links of one level join ranks whose nearest common group is of this level.
struct LevelCost {
  std::string level;  // "host", "network", …
  /// Of the smallest message, from the send on one rank to its receipt on the other.
  double latency_us = 0;
  /// What one rank sends, and at the same time receives, while all others are idle.
  double rank_bytes_per_us = 0;
  /// Level 0: what the ranks of a group together move inside it. Level k > 0: what one group of
  /// level k-1 (a socket, a host, a leaf …) sends, and at the same time receives, through level k.
  double group_bytes_per_us = 0;

  bool operator==(const LevelCost&) const = default;
};

struct Costs {
  std::vector<LevelCost> levels;  // one for each level of the topology
  std::string source;             // "measured", "RINGCOLL_COSTS=…", "defaults"; or a list of these
};

/// Reads the levels from the text of a costs file: {"levels": {"host": {"latency_us": 0.3,
/// "rank_bytes_per_us": 8000, "group_bytes_per_us": 16000}, …}}. Levels may be missing. The "costs"
/// of stats() are also such a file. Throws Error(kInvalidArgument) that names `origin` and the
/// field.
std::vector<LevelCost> parse_costs(std::string_view text, std::string_view origin);
/// parse_costs() of the file at `path` (RINGCOLL_COSTS). Empty if `path` is empty.
std::vector<LevelCost> read_costs(const std::string& path);
/// The text that parse_costs() reads.
std::string costs_json(std::span<const LevelCost> levels);
/// "host 0.4 us 9.1 GB/s, network 31 us 0.12 GB/s". The rates are those of one rank.
std::string describe(std::span<const LevelCost> levels);

/// Assumed for a level that was not measured. `crowded`: hosts have more ranks than CPUs.
LevelCost default_cost(const std::string& level, bool is_host, bool crowded);

/// The ranks that measure together. A section is one group of a level. Its cells are the groups of
/// the level below, or single ranks at level 0. Each cell is contiguous in ring order.
struct Section {
  std::vector<Rank> ranks;    // in ring order
  std::vector<size_t> begin;  // index in `ranks` of each cell's first rank

  size_t cells() const { return begin.size(); }
  std::span<const Rank> cell(size_t number) const {
    size_t end = number + 1 < begin.size() ? begin[number + 1] : ranks.size();
    return std::span(ranks).subspan(begin[number], end - begin[number]);
  }
};
std::vector<Section> sections_of(const Topology& topology, int level);

/// Two cells of a section that measure together: the i-th ranks of both form a lane. Above level 0,
/// the last of an odd number of cells is measured in a second round.
struct CellPair {
  size_t a = 0, b = 0;
  int round = 0;
};
inline constexpr int kMeasuringRounds = 2;
std::vector<CellPair> pairs_of(const Section& section, int level);

/// What one rank measured on its link of one level in one round. 0: the rank measured nothing, or
/// discarded its own result.
struct LinkSample {
  double latency_us = 0;
  double rank_bytes_per_us = 0;  // received, if its pair worked alone
  double lane_bytes_per_us = 0;  // received while all pairs worked
};
using LevelSamples = std::array<LinkSample, kMeasuringRounds>;

/// The costs that follow from the samples of all ranks (by rank, then level); all ranks get the
/// same result. A level has its `given` costs, else the median over its pairs, else the defaults.
/// For an even number of samples the better middle one counts, as an interruption never makes a
/// link faster. Impossible samples (zero, negative, infinite, NaN, absurdly large) are ignored.
Costs agree_on_costs(const Topology& topology, std::span<const std::vector<LevelSamples>> samples,
                     std::span<const LevelCost> given, const std::string& given_source);
/// The costs for some of the ranks. `part` may have a level below hosts that `whole` lacks: in a
/// job on several sockets, a communicator on one socket may have caches as its lowest level. Links
/// of such a level cost as much as links inside a host of `whole`.
Costs costs_of_part(const Topology& part, const Costs& whole);

}  // namespace ringcoll
