// Time: a monotonic clock and the deadline that every wait has.
#pragma once

#include <algorithm>
#include <chrono>

namespace ringcoll {

using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;

/// Limited to a century, so that "for ever" (1e10, infinity) can be added to a point in time.
inline Duration seconds(double s) {
  constexpr double kCentury = 100 * 365.25 * 86400;
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::clamp(s, -kCentury, kCentury)));
}
inline double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

/// A point in time after which a wait is an error. Every function on the way to the system call
/// that waits gets it by value.
class Deadline {
 public:
  explicit Deadline(Duration from_now) : at_(Clock::now() + from_now) {}

  bool passed() const { return Clock::now() >= at_; }
  /// Time left, never negative.
  Duration left() const { return std::max(Duration::zero(), at_ - Clock::now()); }
  /// Adds time that does not count against the deadline.
  void extend(Duration by) { at_ += by; }
  /// Milliseconds left for poll() and epoll_wait(), rounded up, at most `limit_ms`.
  int left_ms(int limit_ms = 1 << 30) const {
    auto ms = std::chrono::ceil<std::chrono::milliseconds>(left()).count();
    return static_cast<int>(std::min<int64_t>(ms, limit_ms));
  }

 private:
  Clock::time_point at_;
};

}  // namespace ringcoll
