// Connections of a group that one thread makes at the same time. All are begun together and
// complete in any order, so many peers that answer late take no longer than one. As with
// Connector::dial(), this rank makes some of them and the peer makes the others. A rank that
// connects depends only on the event loop of its peer, so ranks that connect to one another cannot
// deadlock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "connect/connector.h"

namespace ringcoll {

/// One thread. Connector::interrupt() of the group, from any thread, ends the dials.
class Dials {
 public:
  /// `connector` must outlive this.
  Dials(Connector& connector, GroupNumber group, Deadline deadline);
  /// Gives up unfinished connections, and closes those that nobody took.
  ~Dials();
  Dials(const Dials&) = delete;
  Dials& operator=(const Dials&) = delete;

  /// Most descriptors in flight at a time. Each may hold one of the 128 unproven places at the gate
  /// of a peer, and two such ranks may dial one peer at once. With more, gates would put
  /// connections off. With far fewer, jobs of hundreds of ranks would wait for round trips one
  /// after another. A connection that the peer makes takes one only while this rank probes whether
  /// the peer still listens.
  static constexpr size_t kMostInFlight = 64;

  // These only record the connection; next() and settle_lifelines() make progress.
  void dial(Rank peer, uint32_t channel);
  /// Makes the lifeline of the pair, of which there is one for all groups. The dial is interrupted
  /// with this group.
  void dial_lifeline(Rank peer);

  struct Made {
    Rank peer = kNobody;
    uint32_t channel = 0;  // kLifelineChannel for a lifeline
    Fd fd;  // non-blocking, tuned; empty for a lifeline that the peer has made and that was adopted
  };
  /// Returns the next connection that is made; nothing within `limit`, or if all are done. Throws
  /// the first error of any of them, as Connector::dial(). At the deadline the error names, of the
  /// missing peers, the one that was named first.
  std::optional<Made> next(Duration limit);
  /// Whether there is nothing left to wait for or to return.
  bool empty() const;
  /// Call after an error. Returns lifelines that are made, and those that the peer may have
  /// accepted. If these were closed without a goodbye, the peer would believe that this rank was
  /// killed. Waits for them at most for `limit`, and gives up all other connections.
  std::vector<Made> settle_lifelines(Duration limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringcoll
