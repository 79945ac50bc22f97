// Measures what the links of a job cost, when it starts: pairs of ranks exchange messages over the
// links that their calls will use. docs/algorithms.md, "Where the costs come from".
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "topology/costs.h"
#include "topology/topology.h"
#include "transport/transport.h"

namespace ringcoll {

/// What measuring needs of a mesh.
class MeasuredLinks {
 public:
  virtual ~MeasuredLinks() = default;
  /// The link to a neighbour in the ring, or to one of measured_peers().
  virtual Endpoint& link(Rank peer) = 0;
  /// Until ready() is true; throws what ends a wait (deadline, poison).
  virtual void wait(Rank peer, const std::function<bool()>& ready) = 0;
  /// Whether the link is one of class kNetwork, which takes longer to measure.
  virtual bool is_network(Rank peer) const = 0;
  /// Memory that messages may be sent from, at least 64 KiB. Its content is lost.
  virtual std::span<std::byte> memory() = 0;
  /// Whether links are told ahead what they receive (Transport::wants_places).
  virtual bool wants_places() const = 0;
};

/// The ranks that `self` measures with at the levels that are `wanted`.
std::vector<Rank> measured_peers(const Topology& topology, Rank self,
                                 const std::vector<bool>& wanted, int share);

/// Collective over all ranks, with equal arguments; samples by level. `share`: how many ranks share
/// a CPU where most do, at least 1; what they measure together takes them longer. When it returns,
/// all that was sent is complete and all that was sent here is received. A peer that is stopped
/// costs the time that it is stopped, and this rank one sample.
std::vector<LevelSamples> measure_links(const Topology& topology, Rank self,
                                        const std::vector<bool>& wanted, int share,
                                        MeasuredLinks& links);

}  // namespace ringcoll
