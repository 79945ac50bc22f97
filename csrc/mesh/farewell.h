// A peer that has left a group while it is waited for.
#pragma once

#include <chrono>

#include "base/clock.h"
#include "base/error.h"
#include "mesh/lifelines.h"

namespace ringcoll {

/// Of one wait for one peer, or of several at the same time. One thread.
class Farewell {
 public:
  /// At each turn of a wait: whether the peer has left, and so long ago that what it had sent
  /// before, or a connection that it had made, does not come any more.
  bool is_over(const Health& health, Rank peer) {
    if (!health.gone(peer)) return false;
    if (turns_++ == 0) over_ = Deadline(kLongest);
    return turns_ > kTurns && over_.passed();
  }
  /// Whether the peer was seen to have left.
  bool has_begun() const { return turns_ > 0; }

 private:
  // On a busy machine time alone may pass without a look at the link.
  static constexpr Duration kLongest = std::chrono::seconds(1);
  static constexpr int kTurns = 8;

  int turns_ = 0;
  Deadline over_{kLongest};
};

}  // namespace ringcoll
