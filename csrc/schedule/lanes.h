// Collectives between groups of ranks, in which each rank of a group carries a share of the vector
// and none is a leader. Private to schedule/.
//
// In each group the ranks hold parts of the vector. A *lane* is a range that one rank holds in
// every group: that rank is its carrier there. Each lane is a collective of its carriers, and all
// lanes run at once. Groups of equal size have as many lanes as ranks. Groups of different sizes
// hold different parts, so the lanes are cut at the boundaries of all of them. Every rank of a
// group carries the same number of bytes, if need be in several lanes. Lanes of one rank run in
// different rounds, which are interleaved by Lane::turn.
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

/// A part of a vector, and the rank that holds it.
struct Holding {
  Range range;
  Rank rank = 0;
};
/// The parts of one group, one after another without a gap.
using Holdings = std::vector<Holding>;

struct Lane {
  Range range;
  std::vector<Rank> carriers;  // one in each group, in the order of the groups
  size_t turn = 0;             // lanes of one rank have different turns
};

/// The least number of lanes among groups that hold these parts.
std::vector<Lane> lanes_among(std::span<const Holdings> groups);

/// The lanes of one level. `of_group` has, for each group, the lanes among the groups of the level
/// below that it consists of.
struct LaneLevel {
  std::vector<std::vector<Lane>> of_group;
  size_t turns = 0;     // of the group with the most turns
  size_t carriers = 1;  // of the lane with the most carriers
};

enum class HostLanes : uint8_t { kEveryRank, kFirstRank };

/// The lanes of a range on all levels. On the first level each rank is a group, so a host has one
/// lane whose carriers are all its ranks. Each level splits its lanes over their carriers, and the
/// next level joins these parts across its groups. With kFirstRank, the first rank of a host has
/// the whole range from the second level on.
std::vector<LaneLevel> lanes_of(std::span<const Groups> levels, Range range, HostLanes lanes);
/// The lanes between hosts, without further levels, if every rank of a host has an even share.
LaneLevel lanes_between(const Groups& hosts, Range range);

/// A collective over the carriers of a lane: an allgather of their shares, a broadcast from the
/// first, or an allreduce. `alike`: all its rounds cost the same, as those of a ring do.
struct Spread {
  Schedule (*make)(const Circle& carriers, Range range);
  bool alike;
};

/// The steps of `rank` in its lanes of one level. All ranks have the same number of rounds.
Schedule schedule_of(const LaneLevel& level, Rank group, Rank rank, const Spread& spread);
/// The messages of all ranks on one level, as shares of `whole` elements. With `reduces`, those of
/// the transposed() schedule.
std::vector<Traffic> traffic_of(const LaneLevel& level, const Spread& spread, int64_t whole,
                                bool reduces);

/// Two levels: hosts, and all ranks. If nothing is known of hosts, all ranks are one host.
std::vector<Groups> two_levels(const Problem& problem);

/// A rank's call, and the host that the rank is on.
struct HostView {
  std::vector<Groups> levels;  // two_levels()
  Rank rank;
  Rank host;
  Rank largest = 0;  // the number of ranks of the largest host

  explicit HostView(const Problem& problem);
  const Groups& hosts() const { return levels.front(); }
  bool hosts_are_equal() const {
    return largest * hosts().count() == hosts().end(hosts().count() - 1);
  }
  /// The circle of a host's ranks. Its position is that of the host's first rank.
  Circle circle_of(Rank host) const;
};

/// The circle of the ranks on the host of `rank`. It begins with `first`, and its position is that
/// of `rank`.
Circle host_circle(const Groups& hosts, Rank rank, Rank first);
/// Appends idle rounds, so that all hosts have the same number of rounds.
void pad(Schedule& schedule, size_t rounds);

}  // namespace ringcoll
