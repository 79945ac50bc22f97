// Jobs that may block, on threads that are there only while there are any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace ringcoll {

/// Any thread.
class Errands {
 public:
  /// So many at a time at most; others wait their turn.
  explicit Errands(size_t most_threads) : most_threads_(most_threads) {}
  ~Errands() { stop(); }
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  /// Returns at once. `job` throws nothing; signals are blocked in its thread. False: there is no
  /// thread for it, and it will not run.
  bool run(std::function<void()> job);
  /// Until none runs or waits, for so long at most.
  void settle(Duration limit);
  /// Runs no more of them, not even those that wait, and waits for those that run.
  void stop();

 private:
  void work();

  const size_t most_threads_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::deque<std::function<void()>> jobs_;
  size_t working_ = 0;  // threads that take jobs
  bool stopping_ = false;
};

}  // namespace ringcoll
