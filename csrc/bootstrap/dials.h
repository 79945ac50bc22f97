// Connections of a group that are made at the same time, in the thread that waits for them: all are
// begun together and come as they come, so that many peers that answer late take no longer than
// one. Each may be made or awaited, as Connector::dial() would do it: who connects needs no more of
// its peer than that its event loop runs, so ranks that connect to one another cannot deadlock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "bootstrap/connector.h"

namespace ringcoll {

/// One thread. Connector::interrupt() of the group, from any thread, ends them.
class Dials {
 public:
  /// `connector` outlives them.
  Dials(Connector& connector, GroupNumber group, Deadline deadline);
  /// Gives up what is not made, and closes what nobody took.
  ~Dials();
  Dials(const Dials&) = delete;
  Dials& operator=(const Dials&) = delete;

  /// Descriptors in flight at a time: each is a place among those that have not proven themselves
  /// at the gate of a peer, which has 128, and it may be the peer of two such ranks at once. With
  /// more, gates would put connections off; with far fewer, a job of hundreds of ranks would wait
  /// for round trips again. What is awaited takes none.
  static constexpr size_t kMostInFlight = 64;

  // Begun here; nothing of them happens outside next() and settle_lifelines().
  void dial(Rank peer, uint32_t channel);
  /// On behalf of the group; a pair has one.
  void dial_lifeline(Rank peer);

  struct Made {
    Rank peer = kNobody;
    uint32_t channel = 0;  // kLifelineChannel, of a lifeline
    Fd fd;  // non-blocking, tuned; none: a lifeline that the peer has made, and that was adopted
  };
  /// The next that is made; none: there is none any more, or none came within `limit`. Throws the
  /// first error of any of them, as Connector::dial(); at the deadline, that of the peer that was
  /// named first of those that have not come.
  std::optional<Made> next(Duration limit);
  /// Whether next() has nothing to give.
  bool empty() const;
  /// After an error: lifelines that are made, or that their peers may have already. Closed without
  /// a word they would tell those that this rank was killed. Waits for so long for them at most;
  /// nothing else is made any more.
  std::vector<Made> settle_lifelines(Duration limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringcoll
