#include "coll/terrain.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace ringcoll {
namespace {

// Each group of a level is a contiguous part of the ring.
Groups groups_of(const Topology& topology, int level) {
  const auto& order = topology.ring_order();
  std::vector<Rank> firsts;
  for (size_t i = 0; i < order.size(); i++)
    if (i == 0 || topology.group_of(level, order[i]) != topology.group_of(level, order[i - 1]))
      firsts.push_back(static_cast<Rank>(i));
  return Groups(std::move(firsts), topology.size());
}

// For each rank, the port that it uses between hosts. Ports are numbered in ring order. Empty if
// links have no ports.
std::vector<Rank> ports_of(const Communicator& comm) {
  std::map<std::pair<int, std::string>, Rank> numbers;
  std::vector<Rank> ports;
  for (Rank rank : comm.topology().ring_order()) {
    std::pair port(comm.topology().host_of(rank), comm.group().port_of(rank));
    if (port.second.empty()) return {};
    ports.push_back(numbers.try_emplace(port, static_cast<Rank>(numbers.size())).first->second);
  }
  return ports;
}

int64_t least_core_cache(const Topology& topology) {
  int least = topology.at(0).core_cache_kib;
  for (Rank rank = 1; rank < topology.size(); rank++)
    least = std::min(least, topology.at(rank).core_cache_kib);
  return int64_t{least} << 10;
}

}  // namespace

Terrain terrain_of(const Communicator& comm) {
  Terrain terrain;
  terrain.one_domain = comm.group().one_domain();
  terrain.core_cache_bytes = least_core_cache(comm.topology());
  if (terrain.one_domain) terrain.copied_bytes = comm.config().handed_bytes;
  terrain.segment_bytes = comm.config().segment_bytes;
  terrain.arena_bytes = static_cast<int64_t>(comm.group().memory().bytes());
  terrain.slots = comm.config().slots;
  terrain.algorithm = comm.config().algorithm;
  terrain.fabric.crowded = comm.topology().crowded();
  terrain.fabric.combined_bytes_per_us =
      terrain.one_domain_of_own_cores() ? kCombinedInMemoryBytesPerUs : kCombinedBytesPerUs;
  terrain.fabric.ports = ports_of(comm);
  terrain.fabric.host_level = static_cast<size_t>(comm.topology().host_level());
  for (int level = 0; level < comm.topology().levels(); level++) {
    const LevelCost& cost = comm.costs().levels[level];
    terrain.fabric.groups.push_back(groups_of(comm.topology(), level));
    terrain.fabric.links.push_back(
        {cost.latency_us, cost.rank_bytes_per_us, cost.group_bytes_per_us});
  }
  return terrain;
}

}  // namespace ringcoll
