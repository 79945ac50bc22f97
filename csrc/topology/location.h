// Where a rank runs, as it tells the others.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/types.h"
#include "topology/hints.h"
#include "topology/placement.h"

namespace ringcoll {

/// Where a rank runs. Exchanged as a blob.
struct Location {
  std::string machine;      // boot id: ranks of one machine share its CPUs
  std::string host_id;      // ranks with different ones do not map one another's memory
  bool host_given = false;  // it is RINGCOLL_HOSTID
  std::string host_name;    // for people, and in a topology file
  int pid = 0;
  // Of the cores that this process may run on; -1 = several, or unknown. Socket and third-level
  // cache by their lowest CPU.
  int socket = -1;
  int numa_node = -1;
  int cache = -1;
  std::vector<int> cpus;   // that this process may run on, rising; empty = unknown
  int core_cache_kib = 0;  // a core's own second-level cache; 0 = unknown
  Hints hints;             // what this rank was told of the network; empty after find_placements()
  Placement placement;     // of the host; empty: nothing is known
  std::string placement_source;  // "RINGCOLL_TOPOLOGY=/etc/x.conf"; "": not looked for yet

  /// Of this process. `config.hostid` is the host's id and name; "": those that may be able to map
  /// one another's memory have one id, as one kernel, PID namespace and user namespace has it.
  /// Throws Error(kInvalidArgument) for an id that is too long.
  static Location here(const Config& config, Rank rank);
  std::string encode() const;
  static Location decode(std::string_view blob);  // throws Error(kTransport)
};

/// "rank 3 (pid 4711 on node17)".
std::string describe(Rank rank, const Location& location);

/// What was supposed to be one host, and where some pair cannot map each other, becomes several: a
/// rank joins the first in which it and all ranks map each other. `maps` is symmetric, and asked
/// for pairs of one id only.
std::vector<Location> separate_hosts(std::vector<Location> locations,
                                     const std::function<bool(Rank, Rank)>& maps);

}  // namespace ringcoll
