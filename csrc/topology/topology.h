// Which ranks are near one another, level by level (sockets, hosts, switches), and the order of the
// ring that follows. Pure.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "topology/location.h"

namespace ringcoll {

/// The levels below hosts, the largest first.
inline constexpr std::array<std::string_view, 3> kBelowHosts = {"socket", "numa_node", "cache"};

/// What all ranks know alike after they have exchanged their locations.
class Topology {
 public:
  Topology() = default;
  explicit Topology(std::vector<Location> locations);

  Rank size() const { return static_cast<Rank>(locations_.size()); }
  const Location& at(Rank rank) const { return locations_[rank]; }
  int hosts() const { return static_cast<int>(hosts_.size()); }
  int host_of(Rank rank) const { return group_of(host_level(), rank); }  // 0 … hosts()-1
  bool same_host(Rank a, Rank b) const { return host_of(a) == host_of(b); }
  int ranks_on_host(Rank rank) const { return static_cast<int>(hosts_[host_of(rank)].size()); }
  /// Whether the ranks that share a CPU with this one, itself included, outnumber their CPUs. Ranks
  /// of other hosts on the same machine count too.
  bool crowded(Rank rank) const { return crowded_[rank]; }
  /// Whether any rank is crowded.
  bool crowded() const;
  /// How many crowded ranks there are for each of their CPUs, rounded up, on the machine with the
  /// most; 1 if no rank is crowded.
  int ranks_for_each_cpu() const { return ranks_for_each_cpu_; }
  /// At least 1, since hosts are always a level. The last level has one group of all ranks. A level
  /// above hosts that joins no more than the one below is left out.
  int levels() const { return static_cast<int>(names_.size()); }
  /// The level of hosts: 0, or 1 if there is a level below. There is one if hosts have several
  /// sockets (else NUMA nodes, else third-level caches), their ranks are bound to these, some group
  /// has several ranks, and no rank is crowded.
  int host_level() const { return host_level_; }
  /// One of kBelowHosts; "host"; then "leaf", "spine", "level3" … as far as there are placements,
  /// and "network" for a level that joins the rest.
  const std::string& level_name(int level) const { return names_[level]; }
  /// Groups are numbered from 0 in the order of their lowest ranks.
  int group_of(int level, Rank rank) const { return groups_[level][rank]; }
  /// The ranks in the order of the ring, which starts with rank 0. The groups of every level lie
  /// side by side, so that the ring crosses each group's links once in and once out. On a host, the
  /// ranks of a socket lie side by side; so do those of a NUMA node and of a cache. See
  /// docs/cluster.md, "Where hosts stand".
  const std::vector<Rank>& ring_order() const { return order_; }
  /// The source of the placements: "RINGCOLL_TOPOLOGY=/etc/x.conf", "SLURM_TOPOLOGY_ADDR" or "host
  /// names".
  const std::string& source() const;
  /// Explains the placement of each host, one line per host in ring order, at most `most` hosts.
  std::vector<std::string> explain(size_t most) const;
  /// "rank 3 (pid 4711 on node17)".
  std::string describe(Rank rank) const;

 private:
  void find_hosts();
  void find_level_below();
  void find_levels_above();
  void find_order();
  void find_crowded();

  std::vector<Location> locations_;
  std::vector<std::vector<Rank>> hosts_;  // the ranks of each host, rising
  std::vector<std::string> names_;        // by level
  int host_level_ = 0;
  std::vector<std::vector<int>> groups_;  // by level, then rank
  std::vector<bool> crowded_;
  int ranks_for_each_cpu_ = 1;
  std::vector<Rank> order_;
};

}  // namespace ringcoll
