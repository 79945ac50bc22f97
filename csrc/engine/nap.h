// A short sleep of a thread that has run out of work and expects more.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"

namespace ringcoll {

/// One thread sleeps, any may end it. Work that has come to a place where `busy` sees it before
/// taken() was asked is never slept over: either the sleeper sees it, or who brought it sees that
/// it sleeps.
class Nap {
 public:
  /// Returns after `most`, or when it is ended, or at once if there is something to do.
  template <typename Busy>
  void take(Duration most, Busy&& busy) {
    std::unique_lock lock(mutex_);
    taken_ = true;
    if (!busy()) over_.wait_for(lock, most, [this] { return !taken_; });
    taken_ = false;
  }
  void end() {
    if (!taken_) return;
    {
      std::lock_guard lock(mutex_);
      taken_ = false;
    }
    over_.notify_all();  // without the mutex, or who wakes up would wait for that at once
  }
  bool taken() const { return taken_; }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  std::atomic<bool> taken_ = false;
};

}  // namespace ringcoll
