// What a schedule costs on a cluster. Pure: numbers in, numbers out.
//
// A fabric is the levels of a cluster (sockets, hosts, leaves, spines) with what their links give.
// What a row sends (Traffic) loads resources: a rank's own sending and receiving, the memory of a
// host, the way out of and into each group of a level (a host's ports, a leaf's uplinks). A round
// takes its latency and as long as its busiest resource works; pieces in a pipeline follow one
// another at the pace of the resource that is busiest over all rounds. So two ranks of one host
// that send at the same time share its port, unless it has one for each, and what crosses a spine
// pays for it, as on the wire.
//
// The model is LogGP's (Alexandrov et al., SPAA 1995) with resources that are shared, as in Thakur
// et al. (2005) with the counts of Chan et al., "Collective communication: theory, practice, and
// experience" (2007) for each level.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace ringcoll {

/// Links of one level: between ranks whose nearest common group is of this level.
struct LinkCost {
  double latency_us = 0;         // of the smallest message
  double rank_bytes_per_us = 0;  // that one rank sends, and receives at the same time, alone
  /// Of level 0: what the ranks of a group move inside it, together. Of a further one: what a group
  /// of the level before sends, and at the same time receives, up through this level. 0: no limit.
  double group_bytes_per_us = 0;
};

struct Fabric {
  std::vector<Groups> groups;   // of each level, the smallest first; the last is all ranks
  std::vector<LinkCost> links;  // of each level
  size_t host_level = 0;        // those before it are what hosts are made up of
  /// Of each rank the port by which it reaches other hosts, numbered over all hosts. The ports of a
  /// host give the same each, together what the host does. Empty: each host has one.
  std::vector<Rank> ports;
  double combined_bytes_per_us = 0;
  /// Ranks share cores. Then a latency is work that the cores of a host do, one rank after another:
  /// a round takes as large a part of it as of a host's ranks have a message in it.
  bool crowded = false;

  Rank ranks() const { return groups.back().end(0); }
  const Groups& hosts() const { return groups[host_level]; }
  /// What schedules go by (Problem::levels): hosts and up. One host is as several, if it is made up
  /// of several groups: what joins these is to it what a network is to hosts.
  std::span<const Groups> levels() const;
  size_t level_between(Rank a, Rank b) const;
  bool has_hosts_of_several() const;  // of levels(): more than one, of which one has several ranks
};

/// What a row costs on a fabric, for each byte of the vector.
struct Profile {
  double latency_us = 0;           // of all rounds, one after another
  double us_per_byte = 0;          // of all rounds, each as long as its busiest resource works
  double busiest_us_per_byte = 0;  // of the resource that has most to do in all
  double longest_message = 0;      // its bytes
  double work_us = 0;              // of latency_us, what cores are busy with
  // Of work_us and us_per_byte, where cores are shared: rounds with messages between hosts.
  double wire_work_us = 0;
  double wire_us_per_byte = 0;
  bool overlaps = true;  // pieces in flight hide latencies; if not, each costs what the first does
};

Profile profile_of(std::span<const Traffic> traffic, const Fabric& fabric);

/// A vector of `bytes` in `pieces`, of which `slots` are in flight at a time.
double microseconds(const Profile& profile, double bytes, int64_t pieces, int64_t slots);

/// Whether a row is offered there. `one_domain`: all ranks by shared memory.
bool is_offered(const ScheduleRow& row, const Fabric& fabric, bool one_domain);

}  // namespace ringcoll
