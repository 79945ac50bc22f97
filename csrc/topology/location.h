// Where a rank runs, as it tells the other ranks.
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

/// Where a rank runs. Ranks exchange it in encoded form.
struct Location {
  std::string machine;      // boot id; ranks of one machine share its CPUs
  std::string host_id;      // ranks with different ids do not map one another's memory
  bool host_given = false;  // host_id comes from RINGCOLL_HOSTID
  std::string host_name;    // in messages and in topology files
  int pid = 0;
  // The socket, NUMA node and third-level cache to which this process is bound; -1: several, or
  // unknown. The number of a socket or cache is its lowest CPU.
  int socket = -1;
  int numa_node = -1;
  int cache = -1;
  std::vector<int> cpus;   // that this process may run on, rising; empty: unknown
  int core_cache_kib = 0;  // a core's own second-level cache; 0: unknown
  Hints hints;             // what this rank was told of the network; empty after find_placements()
  Placement placement;     // of the host; empty: unknown
  std::string placement_source;  // "RINGCOLL_TOPOLOGY=/etc/x.conf"; "": before find_placements()

  /// The location of this process. A non-empty `config.hostid` is the host's id and name. Else
  /// processes of one kernel, PID namespace and user namespace have one id, since only these may be
  /// able to map one another's memory. Throws Error(kInvalidArgument) if the id is too long.
  static Location here(const Config& config, Rank rank);
  std::string encode() const;
  static Location decode(std::string_view blob);  // throws Error(kTransport)
};

/// "rank 3 (pid 4711 on node17)".
std::string describe(Rank rank, const Location& location);

/// Splits a supposed host into several if some pair of its ranks cannot map each other's memory. A
/// rank joins the first of these hosts whose ranks can all map it, and it them. `maps` must be
/// symmetric; it is called only for ranks with the same id.
std::vector<Location> separate_hosts(std::vector<Location> locations,
                                     const std::function<bool(Rank, Rank)>& maps);

}  // namespace ringcoll
