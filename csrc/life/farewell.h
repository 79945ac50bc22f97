// Decides when a wait gives up on a peer that has left the group.
#pragma once

#include <chrono>

#include "base/clock.h"
#include "base/error.h"
#include "life/lifelines.h"

namespace ringcoll {

/// For one wait for one peer, or for several peers at the same time. One thread.
class Farewell {
 public:
  /// Called in each iteration of a wait. True if the peer left so long ago that nothing it sent or
  /// connected before can still arrive.
  bool is_over(const Health& health, Rank peer) {
    if (!health.gone(peer)) return false;
    if (turns_++ == 0) over_ = Deadline(kLongest);
    return turns_ > kTurns && over_.passed();
  }

 private:
  // On a busy machine the time may pass without one look at the link, so polls count as well.
  static constexpr Duration kLongest = std::chrono::seconds(1);
  static constexpr int kTurns = 8;

  int turns_ = 0;
  Deadline over_{kLongest};
};

}  // namespace ringcoll
