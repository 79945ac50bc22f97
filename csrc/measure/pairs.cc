#include "measure/pairs.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ringcoll {

// The ranks that exchange messages in step with this one: the ranks of its lane in its own cell and
// in the cells next to it on both sides, as long as they have that lane. Inside a host these are
// all ranks. The result is only `self` if it is alone.
std::vector<Rank> row_of(std::span<const Section> sections, Rank self) {
  for (const Section& section : sections) {
    auto at = static_cast<size_t>(std::ranges::find(section.ranks, self) - section.ranks.begin());
    if (at == section.ranks.size()) continue;
    auto own = static_cast<size_t>(std::ranges::upper_bound(section.begin, at) -
                                   section.begin.begin() - 1);
    size_t lane = at - section.begin[own], begin = own, end = own + 1;
    while (begin > 0 && section.cell(begin - 1).size() > lane) begin--;
    while (end < section.cells() && section.cell(end).size() > lane) end++;
    std::vector<Rank> row;
    for (size_t cell = begin; cell < end; cell++) row.push_back(section.cell(cell)[lane]);
    return row;
  }
  return {self};
}

// Positions 0 and 1, 2 and 3, … of the row exchange first, then 1 and 2, 3 and 4, …
std::vector<Rank> neighbours_in(const std::vector<Rank>& row, Rank self) {
  auto at = std::ranges::find(row, self) - row.begin(), size = std::ssize(row);
  std::vector<Rank> neighbours;
  for (auto neighbour : {at ^ 1, ((at + 1) ^ 1) - 1})
    if (neighbour >= 0 && neighbour < size) neighbours.push_back(row[neighbour]);
  return neighbours;
}

// Ranks of a host use the same memory, and ranks that share cores use the same cores, so the cost
// of a message depends on what the others do. Hosts with enough cores measure in pairs, so that a
// slow host spoils only its own sample.
bool is_in_step(const Topology& topology, int level, int share) {
  return level <= topology.host_level() || share > 1;
}

std::vector<Rank> ranks_beside(const Topology& topology, Rank self) {
  std::vector<Rank> ranks;
  std::ranges::copy_if(topology.ring_order(), std::back_inserter(ranks),
                       [&](Rank rank) { return topology.same_host(rank, self); });
  return ranks;
}

// The ranks that wait for one another along the ring are the lanes of a cell that have a partner,
// or all ranks of a host.
std::vector<Pairing> pairings_of(std::span<const Section> sections, Rank self, int level) {
  std::vector<Pairing> pairings;
  for (const Section& section : sections) {
    if (std::ranges::count(section.ranks, self) == 0) continue;
    if (level == 0 && section.cells() > 1) {
      Pairing own{.several = section.cells() > 3, .chain = section.ranks};
      size_t at = std::ranges::find(own.chain, self) - own.chain.begin();
      if ((at ^ 1) < own.chain.size()) own.partner = own.chain[at ^ 1];
      own.alone = at < 2;
      pairings.push_back(std::move(own));
    }
    if (level == 0) continue;
    for (const CellPair& pair : pairs_of(section, level)) {
      auto mine = section.cell(pair.a), theirs = section.cell(pair.b);
      if (std::ranges::count(mine, self) == 0) std::swap(mine, theirs);
      size_t lane = std::ranges::find(mine, self) - mine.begin();
      size_t lanes = std::min(mine.size(), theirs.size());
      if (lane >= lanes) continue;
      auto chain = mine.first(lanes);
      pairings.push_back(
          {pair.round, theirs[lane], lane == 0, lanes > 1, {chain.begin(), chain.end()}});
    }
  }
  return pairings;
}

std::vector<Rank> measured_peers(const Topology& topology, Rank self,
                                 const std::vector<bool>& wanted, int share) {
  std::vector<Rank> peers;
  for (int level = 0; level < topology.levels(); level++) {
    if (!wanted[level]) continue;
    auto sections = sections_of(topology, level);
    for (const Pairing& pairing : pairings_of(sections, self, level))
      if (pairing.partner != kNobody) peers.push_back(pairing.partner);
    if (!is_in_step(topology, level, share)) continue;
    for (const auto& row : {row_of(sections, self), ranks_beside(topology, self)})
      for (Rank peer : neighbours_in(row, self)) peers.push_back(peer);
  }
  std::ranges::sort(peers);
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace ringcoll
