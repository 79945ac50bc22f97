// How a vector is carried between groups of ranks: not by one leader for each group, but by all of
// its ranks, each with a share of its own. For schedule/ only.
//
// In each group a vector is held in parts by its ranks. A *lane* is a range that in every group
// lies with one rank, its carrier there; between the groups, each lane is a collective of its
// carriers, and all lanes are under way at once. Groups of equal size have as many lanes as ranks.
// Groups of different sizes hold different parts, and the lanes are what their boundaries cut: so
// every rank of a group carries the same number of bytes, in several lanes where it has to. Those
// of one rank take turns.
//
// Traff, "Decomposing MPI collectives for exploiting multi-lane communication", CLUSTER 2020;
// Bayatpour et al., "Scalable reduction collectives with data partitioning-based multi-leader
// design", SC 2017.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "schedule/families.h"
#include "schedule/schedule.h"

namespace ringcoll {

/// A part of a vector, and who has it.
struct Holding {
  Range range;
  Rank rank = 0;
};
/// Of a group: one after another, without a gap.
using Holdings = std::vector<Holding>;

struct Lane {
  Range range;
  std::vector<Rank> carriers;  // one of each group, in the order of the groups
  size_t turn = 0;             // no rank carries two lanes of one turn
};

/// As few lanes among groups as there can be.
std::vector<Lane> lanes_among(std::span<const Holdings> groups);

/// The lanes of one level: in each of its groups, among the groups of the level before.
struct LaneLevel {
  std::vector<std::vector<Lane>> of_group;
  size_t turns = 0;     // of the group that has most
  size_t carriers = 1;  // of the longest lane
};

enum class HostLanes : uint8_t { kEveryRank, kFirstRank };

/// The lanes of a range on all levels. On the first one the groups are the ranks themselves, so
/// that a host has one lane, carried by all of its ranks; what a level has split over the carriers
/// of its lanes, the next one joins across its groups. With kFirstRank the first rank of a host has
/// all of the range from there on.
std::vector<LaneLevel> lanes_of(std::span<const Groups> levels, Range range, HostLanes lanes);
/// Those of the last level, if there are but hosts and every rank has its part.
LaneLevel lanes_between(const Groups& hosts, Range range);

/// A collective over the carriers of a lane: what each has of the range, or what the first has, is
/// spread to all. `alike`: all of its rounds cost the same, as those of a ring do.
struct Spread {
  Schedule (*make)(const Circle& carriers, Range range);
  bool alike;
};

/// What `rank` does for its lanes on a level; the same number of rounds for all ranks.
Schedule schedule_of(const LaneLevel& level, Rank group, Rank rank, const Spread& spread);
/// What all ranks send then, as shares of `whole` elements; transposed(), if it `reduces`.
std::vector<Traffic> traffic_of(const LaneLevel& level, const Spread& spread, int64_t whole,
                                bool reduces);

/// Hosts and all ranks, without the levels between. Where nothing is known, all are one host.
std::vector<Groups> two_levels(const Problem& problem);

/// A call as a rank sees it from its host.
struct HostView {
  std::vector<Groups> levels;  // two_levels()
  Rank rank;
  Rank host;
  Rank largest = 0;  // ranks of the host that has most

  explicit HostView(const Problem& problem);
  const Groups& hosts() const { return levels.front(); }
  bool hosts_are_equal() const {
    return largest * hosts().count() == hosts().end(hosts().count() - 1);
  }
  /// A host's ranks, from the first on.
  Circle circle_of(Rank host) const;
};

/// The circle of a host's ranks, beginning with `first`.
Circle host_circle(const Groups& hosts, Rank rank, Rank first);
/// Idle rounds at the end, for hosts that have fewer than others.
void pad(Schedule& schedule, size_t rounds);

}  // namespace ringcoll
