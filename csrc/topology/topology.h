// Who is near whom: sockets, hosts, and what hosts are joined by, level by level; and the order of
// the ring that follows. Pure.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "topology/location.h"

namespace ringcoll {

/// Names of levels below hosts: what hosts are made up of, the largest first.
inline constexpr std::array<std::string_view, 3> kBelowHosts = {"socket", "numa_node", "cache"};

/// What all ranks know alike after the exchange.
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
  /// More ranks than CPUs: the ranks that share a CPU with this one, be they of its host or of
  /// another on the same machine, have fewer in all.
  bool crowded(Rank rank) const { return crowded_[rank]; }
  /// How many of the crowded ranks there are for each of their CPUs, rounded up, on the machine
  /// where that is most; 1 if no rank is crowded.
  int ranks_for_each_cpu() const { return ranks_for_each_cpu_; }
  /// At least 1, of which one is that of hosts. The last has one group with all ranks. A level that
  /// joins nothing that the one below does not join is left out.
  int levels() const { return static_cast<int>(names_.size()); }
  /// 0, or 1 where hosts have several sockets, or else NUMA nodes, or else third-level caches, and
  /// their ranks are bound to these, several to some, and each has a CPU of its own.
  int host_level() const { return host_level_; }
  /// One of kBelowHosts; "host"; then "leaf", "spine", "level3" … as the placements
  /// say, and "network" for what joins the rest.
  const std::string& level_name(int level) const { return names_[level]; }
  /// Dense from 0, by lowest rank.
  int group_of(int level, Rank rank) const { return groups_[level][rank]; }
  /// The ring: the groups of every level lie side by side in it, so that it crosses each group's
  /// links once in and once out; on a host the ranks of one socket, there those of one NUMA node,
  /// and there those of one cache. Starts with rank 0 (see "Where hosts stand" in
  /// docs/cluster.md for the rest).
  const std::vector<Rank>& ring_order() const { return order_; }
  /// Where the placements come from: "RINGCOLL_TOPOLOGY=/etc/x.conf", "SLURM_TOPOLOGY_ADDR", "host
  /// names".
  const std::string& source() const;
  /// Why hosts have their placements, a line each, in the order of the ring, `most` at most.
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
  std::vector<std::vector<Rank>> hosts_;  // their ranks, rising
  std::vector<std::string> names_;        // of the levels
  int host_level_ = 0;
  std::vector<std::vector<int>> groups_;  // by level, by rank
  std::vector<bool> crowded_;
  int ranks_for_each_cpu_ = 1;
  std::vector<Rank> order_;
};

}  // namespace ringcoll
