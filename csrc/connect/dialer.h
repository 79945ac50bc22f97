// Makes authenticated TCP connections to peers. This is all that most users need of a Connector.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/fd.h"
#include "base/types.h"

namespace ringcoll {

/// Both ends call dial() with the same channel; it blocks until the deadline at most.
class Dialer {
 public:
  virtual ~Dialer() = default;
  virtual Fd dial(Rank peer, uint32_t channel, Deadline deadline) = 0;
};
/// Channels of a pair: 0 is the lifeline, and the connections of a link for calls follow. Messages
/// have one, and so has an exchange over connections between the ranks.
inline constexpr uint32_t kLifelineChannel = 0;
inline constexpr uint32_t kFirstDataChannel = 1;
inline constexpr uint32_t kMeetingChannel = 31;
inline constexpr uint32_t kMessageChannel = kMeetingChannel - 1;

}  // namespace ringcoll
