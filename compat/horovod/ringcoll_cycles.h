// When a cycle of Horovod's background thread begins under the controller RINGCOLL: when there is
// news on any rank, instead of a fixed time after the one before.
//
// A cycle is one agreement of all ranks, so all count them alike. A rank sleeps between two cycles
// until something was submitted to it (a tensor, a process set, its shutdown), or it hears that
// another has begun the next one (ringcoll_bell.h). What is submitted while a cycle runs is there
// when it ends, so the next one begins at once and takes all of it: bursts are fused.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>

#include "ringcoll_bell.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

class RingcollCycles {
 public:
  static RingcollCycles& Get();

  /// Something for the next cycle is there. In any thread, at any time; not under a lock that the
  /// background thread takes as it begins the cycle.
  void Submitted();
  /// At its end something has been submitted: declared before a lock, it says so when that is open.
  struct Submission {
    ~Submission() { Get().Submitted(); }
  };

  /// From here on cycles follow the news, if all ranks of the job agree (`wish`: this one would):
  /// they do unless HOROVOD_CYCLE_TIME was set, or what else is about times of cycles. Collective.
  /// Throws std::runtime_error.
  void Begin(const RingcollLibrary& library, rc_comm* job, bool wish);
  /// Sleeps until a cycle is to begin. False, at once, if cycles follow the clock. Throws
  /// std::runtime_error if the job has failed.
  bool Await();
  /// Before the job's communicator is destroyed.
  void Close();

 private:
  using Clock = std::chrono::steady_clock;
  enum State : int { kNothing, kNews, kAsleep };

  RingcollCycles() = default;
  bool TakeNews();
  std::optional<RingcollToll> Hear(Clock::duration limit);
  /// Until there is news, another rank has begun the next cycle, or it has been quiet for long.
  /// Returns that rank, or -1.
  int Sleep();

  std::atomic<int> state_{kNothing};
  // Whoever finds the background thread asleep rings; under it, as the bell may go meanwhile.
  std::mutex bell_mutex_;
  bool open_ = false;
  std::unique_ptr<RingcollBell> bell_;
  // Of the background thread.
  uint64_t next_ = 0;
  int unheard_ = 0;         // cycles since all that lay in the channels was heard
  Clock::time_point over_;  // the time without news
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
