// The cost model: how long a schedule takes on a cluster. Pure: numbers in, numbers out.
//
// A fabric is the levels of a cluster (sockets, hosts, leaves, spines) and what their links give.
// The messages of a row (Traffic) load resources: the sending and receiving side of each rank, the
// memory of a host, and the way into and out of each group (a host's ports, a leaf's uplinks). A
// round takes its latency, plus the time for which its busiest resource works. Pieces in a pipeline
// follow one another at the pace of the resource that is busiest over all rounds. So two ranks of a
// host that send at the same time share its port, unless each has its own. A message that crosses a
// spine also loads the spine.
//
// The model is LogGP's (Alexandrov et al., SPAA 1995) with shared resources, as in Thakur et al.
// (2005). Each level has the counts of Chan et al., "Collective communication: theory, practice,
// and experience" (2007).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace ringcoll {

/// The links of one level join ranks whose nearest common group is of this level.
struct LinkCost {
  double latency_us = 0;         // of the smallest message, one way
  double rank_bytes_per_us = 0;  // one rank alone, in each direction at once
  /// Level 0: what all ranks of a group together move inside it. Higher levels: what one group of
  /// the level below sends, and at the same time receives, through this level. 0: no limit.
  double group_bytes_per_us = 0;
};

struct Fabric {
  std::vector<Groups> groups;   // by level, the smallest first; the last has all ranks
  std::vector<LinkCost> links;  // by level
  size_t host_level = 0;        // lower levels are parts of hosts
  /// For each rank, the port by which it reaches other hosts, numbered over all hosts. The ports of
  /// a host have equal shares of the host's rate. Empty: each host has one port.
  std::vector<Rank> ports;
  double combined_bytes_per_us = 0;
  /// Ranks share cores. A latency is then work that a host's cores do for one rank after another.
  /// So a round costs its latency times the part of a host's ranks that have a message in it.
  bool crowded = false;

  Rank ranks() const { return groups.back().end(0); }
  const Groups& hosts() const { return groups[host_level]; }
  /// The levels that schedules see (Problem::levels): hosts and above. If there is only one host,
  /// its own groups (such as sockets) come first and count as hosts.
  std::span<const Groups> levels() const;
  size_t level_between(Rank a, Rank b) const;
  bool has_hosts_of_several() const;  // several, one with several ranks
};

/// What a row costs on a fabric. A byte is a byte of the whole vector.
struct Profile {
  double latency_us = 0;           // the sum over all rounds
  double us_per_byte = 0;          // the sum over all rounds of their busiest resources
  double busiest_us_per_byte = 0;  // of the resource with the most work in all rounds
  double longest_message = 0;      // its share of the vector
  double work_us = 0;              // the part of latency_us in which cores are busy
  // Where cores are shared: the part of work_us and us_per_byte in rounds between hosts.
  double wire_work_us = 0;
  double wire_us_per_byte = 0;
};

Profile profile_of(std::span<const Traffic> traffic, const Fabric& fabric);

/// The time for a vector of `bytes` in `pieces`, with `slots` pieces in flight at a time.
double microseconds(const Profile& profile, double bytes, int64_t pieces, int64_t slots);

/// Whether a row is offered on this fabric. `one_domain`: all ranks can map one another's memory.
bool is_offered(const ScheduleRow& row, const Fabric& fabric, bool one_domain);

}  // namespace ringcoll
