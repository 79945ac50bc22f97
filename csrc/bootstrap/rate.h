// How fast a network carries data: measured on one connection, in a few milliseconds. What arrives
// is looked at where it arrives, on the loop of the peer, which tells the rate: acknowledgements
// queue up behind what their host itself is sending.
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

/// Sends into a Sink until that tells at which rate, in bytes a microsecond. Nothing if it does not
/// in time: the network is very slow, or the peer was not run. `fd` is of no use afterwards but to
/// be closed, which drops what is under way.
std::optional<double> measure_rate(int fd);

/// What had arrived at a time.
struct Arrived {
  Clock::time_point at;
  uint64_t bytes;
};
/// The best rate of the windows of what was seen, in bytes a microsecond: in one of several, a
/// machine that is busy with something else may not run. A window begins and ends where something
/// arrived and holds at least kTrialWindow and kTrialWindowBytes, for on a slow link tens of KiB
/// arrive at a time, milliseconds apart. Where there was not so much, all of it is one window. Zero
/// of less than two arrivals. `seen` rises.
double rate_of(std::span<const Arrived> seen);
inline constexpr uint64_t kTrialWindowBytes = 256 << 10;
inline constexpr Duration kTrialWindow = std::chrono::milliseconds(1);
inline constexpr int kTrialWindows = 3;

/// What arrives is looked at after so much, or so long, for kTrialWindows or about kTrialTime:
/// first, buffers are filled, the congestion window opens, and what a shaped link lets through at
/// once is used up.
inline constexpr uint64_t kTrialWarmBytes = 512 << 10;
inline constexpr Duration kTrialWarmTime = std::chrono::milliseconds(30);
inline constexpr Duration kTrialTime = std::chrono::milliseconds(20);

/// Reads and drops what comes on connections, on the loop's thread, until they are closed, and
/// tells each once how fast it came.
class Sink {
 public:
  explicit Sink(EventLoop& loop) : loop_(loop) {}
  /// Not on the loop's thread.
  ~Sink();
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  void take(Fd fd);

 private:
  struct Stream {
    Fd fd;
    Clock::time_point begin{};  // of its first bytes
    uint64_t bytes = 0;
    std::vector<Arrived> seen;  // when it is warm
    bool told = false;
  };
  void drop_what_is_there(int number);
  static void look(Stream& stream);

  EventLoop& loop_;
  std::mutex mutex_;
  std::map<int, Stream> open_;
};

}  // namespace ringcoll
