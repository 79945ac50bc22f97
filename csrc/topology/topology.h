// Who is near whom: hosts and NUMA nodes, and the order of the ring that follows from them. Pure,
// but for here().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace ringcoll {

/// Where a rank runs. Exchanged as a blob.
struct Location {
  std::string host_id;    // boot id: equal on one host and nowhere else, whatever the hostname says
  std::string host_name;  // for people
  int pid = 0;
  int numa_node = -1;     // of the cores that this process may run on; -1 = several, or unknown
  std::vector<int> cpus;  // that this process may run on, rising; empty = unknown

  static Location here();
  std::string encode() const;
  static Location decode(std::string_view blob);  // throws Error(kTransport)
};

/// What all ranks know alike after the exchange.
class Topology {
 public:
  Topology() = default;
  explicit Topology(std::vector<Location> locations);

  Rank size() const { return static_cast<Rank>(locations_.size()); }
  const Location& at(Rank rank) const { return locations_[rank]; }
  int hosts() const { return hosts_; }
  int host_of(Rank rank) const { return host_of_[rank]; }  // 0 … hosts()-1, by lowest rank
  int ranks_on_host(Rank rank) const;
  /// More ranks than CPUs: the ranks that share a CPU with this one have fewer in all.
  bool crowded(Rank rank) const;
  /// The ring: ranks of one host side by side, there the ranks of one NUMA node side by side;
  /// otherwise by rank. Starts with rank 0. So each host has one link in and one link out.
  const std::vector<Rank>& ring_order() const { return order_; }
  /// "rank 3 (pid 4711 on node17)".
  std::string describe(Rank rank) const;

 private:
  std::vector<Location> locations_;
  std::vector<int> host_of_;
  std::vector<Rank> order_;
  int hosts_ = 0;
};

}  // namespace ringcoll
