// Making an authenticated TCP connection to a peer, as those see it who need nothing else of a
// Connector.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/fd.h"
#include "base/types.h"

namespace ringcoll {

/// Both ends call it with the same channel; blocks to the deadline.
class Dialer {
 public:
  virtual ~Dialer() = default;
  virtual Fd dial(Rank peer, uint32_t channel, Deadline deadline) = 0;
};
/// Channels of the pair: 0 is the lifeline, the connections of a link follow.
inline constexpr uint32_t kLifelineChannel = 0;
inline constexpr uint32_t kFirstDataChannel = 1;

}  // namespace ringcoll
