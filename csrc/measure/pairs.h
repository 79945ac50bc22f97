// Decides which ranks measure with which, and which pair measures alone. All functions are pure:
// every rank works out the same from the topology.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "topology/costs.h"
#include "topology/topology.h"

namespace ringcoll {

/// The role of a rank when a level is measured.
struct Pairing {
  int round = 0;
  Rank partner = kNobody;
  bool alone = false;       // this pair is the one that first streams alone
  bool several = false;     // other pairs stream beside it afterwards
  std::vector<Rank> chain;  // ranks that measure in turn; the pair alone is first
};

/// The ranks that exchange messages in step with `self`.
std::vector<Rank> row_of(std::span<const Section> sections, Rank self);
/// The ranks of a row that a rank exchanges messages with, in this order.
std::vector<Rank> neighbours_in(const std::vector<Rank>& row, Rank self);
/// Whether all ranks of a row measure this level at the same time. `share`: see measure_links().
bool is_in_step(const Topology& topology, int level, int share);
/// The ranks of this host, in the order of the ring.
std::vector<Rank> ranks_beside(const Topology& topology, Rank self);
/// The roles of `self` at a level, one for each round in which it has a partner.
std::vector<Pairing> pairings_of(std::span<const Section> sections, Rank self, int level);
/// The ranks that `self` measures with at the `wanted` levels.
std::vector<Rank> measured_peers(const Topology& topology, Rank self,
                                 const std::vector<bool>& wanted, int share);

}  // namespace ringcoll
