// Measures the costs of a job's links when it starts. Pairs of ranks exchange messages over the
// links that their calls will use. See docs/algorithms.md, "Where the costs come from".
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "topology/costs.h"
#include "topology/topology.h"
#include "transport/transport.h"

namespace ringcoll {

/// The interface of a mesh for measurements.
class MeasuredLinks {
 public:
  virtual ~MeasuredLinks() = default;
  /// The link to a neighbour in the ring or to one of measured_peers().
  virtual Endpoint& link(Rank peer) = 0;
  /// Blocks until ready() is true. Throws what ends a wait (deadline, poison).
  virtual void wait(Rank peer, const std::function<bool()>& ready) = 0;
  /// True if the link is of class kNetwork, which takes longer to measure.
  virtual bool is_network(Rank peer) const = 0;
  /// Memory to send messages from, at least 64 KiB. Its content is lost.
  virtual std::span<std::byte> memory() = 0;
  /// True if links want to know ahead where a payload is to go (Transport::wants_places).
  virtual bool wants_places() const = 0;
};

/// Collective over all ranks, with equal arguments; returns samples by level. `share` is how many
/// ranks share a CPU where most do, at least 1; with more, measurements take longer. When it
/// returns, all sends are complete and everything sent to this rank was received. A stopped peer
/// delays the return and costs this rank one sample.
std::vector<LevelSamples> measure_links(const Topology& topology, Rank self,
                                        const std::vector<bool>& wanted, int share,
                                        MeasuredLinks& links);

}  // namespace ringcoll
