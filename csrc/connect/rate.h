// Measures how fast a network carries data, on one connection, usually in some milliseconds. The
// receiver measures what arrives, on its event loop, and sends the rate back. The sender could not
// tell from acknowledgements, which queue behind the data that the receiver's host sends.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "net/event_loop.h"

namespace ringcoll {

/// Sends into a Sink until it returns the rate, in bytes a microsecond. Nothing if no rate comes in
/// time: the network is very slow, or the peer did not run. `fd` can only be closed afterwards,
/// which drops the data in flight.
std::optional<double> measure_rate(int fd);

/// How many bytes had arrived at a time.
struct Arrived {
  Clock::time_point at;
  uint64_t bytes;
};
/// The best rate over all windows of `seen`, in bytes a microsecond. The best counts since in some
/// windows a busy machine may not run. A window begins and ends with an arrival. It spans at least
/// kTrialWindow and kTrialWindowBytes, since a slow link delivers tens of KiB at a time,
/// milliseconds apart. If no window is that long, all of `seen` is one. 0 for fewer than two
/// arrivals. Times and bytes must not decrease.
double rate_of(std::span<const Arrived> seen);
inline constexpr uint64_t kTrialWindowBytes = 256 << 10;
inline constexpr Duration kTrialWindow = std::chrono::milliseconds(1);
inline constexpr int kTrialWindows = 3;

/// The measurement begins after kTrialWarmBytes or kTrialWarmTime, and lasts for kTrialWindows or
/// about kTrialTime. Before that, buffers fill, the congestion window opens, and the burst that a
/// shaped link allows is used up.
inline constexpr uint64_t kTrialWarmBytes = 512 << 10;
inline constexpr Duration kTrialWarmTime = std::chrono::milliseconds(30);
inline constexpr Duration kTrialTime = std::chrono::milliseconds(20);

/// Receives trial data and drops it, on the loop's thread, until the connections are closed. Each
/// connection is sent its rate once.
class Sink {
 public:
  explicit Sink(EventLoop& loop) : loop_(loop) {}
  /// Must not be called on the loop's thread.
  ~Sink();
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  void take(Fd fd);

 private:
  struct Stream {
    Fd fd;
    Clock::time_point begin{};  // arrival of the first bytes
    uint64_t bytes = 0;
    std::vector<Arrived> seen;  // from the end of the warm-up on
    bool told = false;
  };
  void drop_what_is_there(int number);
  static void look(Stream& stream);

  EventLoop& loop_;
  std::mutex mutex_;
  std::map<int, Stream> open_;
};

}  // namespace ringcoll
