// Whether who starts calls waits for them at once, and for all of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace ringcoll {

/// Of the calls of an engine, in batches: a batch begins with a call that is started after one was
/// waited for. Goes by what was done the last time. Any thread.
class Habit {
 public:
  void batch_begins() {
    goes_on_ = waited_ > 1 && all_soon_;
    waited_ = 0;
    all_soon_ = true;
  }
  /// This thread waits for a call, whether it has ended or not, and executes if need be.
  void waits() {
    const bool soon = Clock::now().time_since_epoch() - Clock::duration(left_library) < kSoon;
    if (waited_++ == 0)
      soon_ = soon;
    else if (!soon)
      all_soon_ = false;
  }
  /// Nobody has come.
  void forget() { soon_ = false; }
  /// Whether the first who waited for one of the last batch came from a start or a wait, of
  /// whichever engine, and had done nothing else.
  bool waits_soon() const { return soon_; }
  /// And went on so, to the next of the batch before.
  bool goes_on() const { return goes_on_; }

  /// This thread ends a start or a wait. Said at last, for another may have taken the CPU
  /// meanwhile.
  static void leave_library() { left_library = Clock::now().time_since_epoch().count(); }

 private:
  static constexpr Duration kSoon = std::chrono::microseconds(20);
  static inline thread_local Clock::rep left_library = 0;  // when, on that clock

  std::atomic<uint64_t> waited_ = 0;  // so often since the batch began
  std::atomic<bool> soon_ = false, all_soon_ = true, goes_on_ = false;
};

}  // namespace ringcoll
