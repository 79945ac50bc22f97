// How fast a network carries data: measured on one connection, in a few milliseconds, by the end
// that sends. The other end needs no more than an event loop.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "base/clock.h"
#include "base/fd.h"
#include "net/event_loop.h"

namespace ringcoll {

/// Sends for a few milliseconds, on a slow network up to kTrialWarmTime + kTrialTime, and returns
/// rate_of() what the peer's kernel acknowledged; at least a token rate, for the connection was
/// made. What comes first is not looked at: it fills buffers, opens the congestion window and uses
/// up what a shaped link lets through at once. `fd` is of no use afterwards but to be closed, which
/// drops what is under way.
double measure_rate(int fd);
inline constexpr uint64_t kTrialWarmBytes = 512 << 10;
inline constexpr Duration kTrialWarmTime = std::chrono::milliseconds(15);
inline constexpr Duration kTrialTime = std::chrono::milliseconds(20);

/// What had been acknowledged at a time.
struct Acknowledged {
  Clock::time_point at;
  uint64_t bytes;
};
/// The best rate of the windows of what was seen, in bytes a microsecond: in one of several, a
/// machine that is busy with something else may not run. A window begins and ends where something
/// was acknowledged and holds at least kTrialWindow and kTrialWindowBytes, for a slow link
/// acknowledges tens of KiB at a time, milliseconds apart. Where there was not so much, all of it
/// is one window, from the first look on if there were less than two acknowledgements. `seen`
/// rises.
double rate_of(std::span<const Acknowledged> seen);
inline constexpr uint64_t kTrialWindowBytes = 256 << 10;
inline constexpr Duration kTrialWindow = std::chrono::milliseconds(1);
inline constexpr int kTrialWindows = 3;

/// Reads and drops what comes on connections, on the loop's thread, until they are closed.
class Sink {
 public:
  explicit Sink(EventLoop& loop) : loop_(loop) {}
  /// Not on the loop's thread.
  ~Sink();
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  void take(Fd fd);

 private:
  void drop_what_is_there(int number);

  EventLoop& loop_;
  std::mutex mutex_;
  std::map<int, Fd> open_;
};

}  // namespace ringcoll
