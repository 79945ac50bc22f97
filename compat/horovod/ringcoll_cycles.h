// Decides when a cycle of Horovod's background thread begins under the controller RINGCOLL. It
// begins when any rank has news, not a fixed time after the previous cycle.
//
// Each cycle is one agreement of all ranks, so all count cycles alike. Between two cycles a rank
// sleeps. It wakes up when something is submitted to it (a tensor, a process set, its shutdown), or
// another rank notifies it of the next cycle (ringcoll_bell.h). If something is submitted during a
// cycle, the next one begins at once and takes all of it, so bursts are fused.
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

  /// Says that something is there for the next cycle. Any thread, at any time, but not under a lock
  /// that the background thread takes when it begins a cycle.
  void Submitted();
  /// Calls Submitted() at its end. An object that is declared before a lock does so after the
  /// unlock.
  struct Submission {
    ~Submission() { Get().Submitted(); }
  };

  /// From now on cycles follow the news if all ranks of the job agree. `wish`: this rank does,
  /// because its user set neither HOROVOD_CYCLE_TIME nor another option about the time of cycles.
  /// Collective. Throws std::runtime_error.
  void Begin(const RingcollLibrary& library, rc_comm* job, bool wish);
  /// Sleeps until a cycle is to begin. Returns false at once if cycles follow the clock. Throws
  /// std::runtime_error if the job has failed.
  bool Await();
  /// Called before the job's communicator is destroyed.
  void Close();

 private:
  using Clock = std::chrono::steady_clock;
  enum State : int { kNothing, kNews, kAsleep };

  RingcollCycles() = default;
  bool TakeNews();
  std::optional<RingcollToll> Hear(Clock::duration limit);
  /// Sleeps until there is news, another rank has begun the next cycle, or no rank had news for
  /// long. Returns that rank, or -1.
  int Sleep();

  std::atomic<int> state_{kNothing};
  // Guards `bell_` and `open_`: a thread that submits may notify while the job ends.
  std::mutex bell_mutex_;
  bool open_ = false;
  std::unique_ptr<RingcollBell> bell_;
  // Used by the background thread only.
  uint64_t next_ = 0;
  int unheard_ = 0;         // cycles since the channels were last emptied
  Clock::time_point over_;  // when the time without news ends
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
