// Blocking calls that their caller may end (rc_call.interrupted), beside the deadline that ends
// them anyway.
#pragma once

#include <functional>
#include <optional>

#include "base/clock.h"

namespace ringcoll {

/// A blocking call that its caller may end. While it lives, it is the call of the thread that has
/// made it, and every wait of that thread for another rank or another thread calls look().
class Interruption {
 public:
  /// How often the caller is asked, and so the longest sleep of a wait.
  static constexpr Duration kEvery = std::chrono::milliseconds(100);

  /// `asks` returns whether the caller wants the call to end. Then `ends` is called, once: the wait
  /// goes on, and ends by what `ends` has done. Both are called under no lock and do not throw.
  Interruption(std::function<bool()> asks, std::function<void()> ends);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // For waits, of the call of this thread. Most threads have none: then all return false.

  /// Whether a wait has to look() at least every kEvery.
  static bool watches();
  /// Whether look() would ask now.
  static bool is_due() { return current && current->is_due_now(); }
  /// Asks the caller if it is time to. Precondition: the thread holds no lock.
  static void look() {
    if (is_due()) current->ask();
  }
  /// Whether the caller has ended the call.
  static bool has_ended() { return current && current->ended_; }

 private:
  bool is_due_now();
  void ask();

  static inline thread_local Interruption* current = nullptr;

  const std::function<bool()> asks_;
  const std::function<void()> ends_;
  Interruption* const outer_;  // of a call that has called this one's caller
  // The clock is not read before the call waits, since most calls never do.
  std::optional<Clock::time_point> next_;
  bool ended_ = false;
};

}  // namespace ringcoll
