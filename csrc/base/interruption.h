// Blocking calls that their caller may end (rc_call.interrupted) before their deadline ends them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "base/clock.h"

namespace ringcoll {

/// A blocking call of this thread that its caller may end. While the object lives, every wait of
/// the thread for another rank or thread calls look().
class Interruption {
 public:
  /// How often the caller is asked, and so the longest sleep of a wait.
  static constexpr Duration kEvery = std::chrono::milliseconds(100);

  /// `asks` returns whether the caller wants to end the call. If so, `ends` is called once. The
  /// wait goes on until the effect of `ends` ends it. Neither function throws. No lock is held when
  /// they are called.
  Interruption(std::function<bool()> asks, std::function<void()> ends);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // The functions below are for waits, and concern the call of this thread. Most threads have none;
  // then all of them return false.

  /// Whether a wait must call look() at least every kEvery.
  static bool watches();
  /// The longest sleep of a wait: `limit`, or until look() has to be called.
  static Duration longest_sleep(Duration limit) {
    return watches() ? std::min(limit, kEvery) : limit;
  }
  /// Whether look() would ask now.
  static bool is_due() { return current && current->is_due_now(); }
  /// Asks the caller if is_due(). Precondition: the thread holds no lock.
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
  Interruption* const outer_;  // of the call of this thread around this one; null: none
  // Unset until the call first waits: most calls never wait, and need not read the clock.
  std::optional<Clock::time_point> next_;
  bool ended_ = false;
};

/// Waits until `changed` is notified, at most for `limit`, or until the caller of this thread's
/// call is to be asked. Then asks it, without the lock. The caller of this function loops.
void wait_attended(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                   Duration limit);

}  // namespace ringcoll
