// One way to wait for the links of a group, for calls and for messages. A wait first polls. Then it
// sleeps for all links of its transports at once, on a bell and on the descriptors that the
// transports name (Transport::may_be_ready). It stands here, so that tests of transports sleep as
// groups do.
#pragma once

#include <poll.h>
#include <sched.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "shm/bell.h"
#include "transport/transport.h"

namespace ringcoll {

/// One thread at a time, except wake().
class WaitSet {
 public:
  /// How long a caller sleeps before it looks at what it waits for. A notification may be lost: a
  /// peer may be out of descriptors.
  static constexpr Duration kLongestSleep = std::chrono::milliseconds(50);

  /// `bells` outlives this object. `yields`: ranks share CPUs, so others run between two polls.
  explicit WaitSet(Bells& bells, bool yields = false) : bells_(bells), yields_(yields) {}
  WaitSet(const WaitSet&) = delete;
  WaitSet& operator=(const WaitSet&) = delete;

  /// Adds a transport or a part, unless it is there. It outlives all later waits.
  void add(Transport& part);
  const std::vector<Transport*>& parts() const { return parts_; }
  bool yields() const { return yields_; }

  /// Polls until ready() is true, and then returns true, or until `time` has passed. Calls
  /// between() after each few polls.
  template <typename Ready, typename Between>
  bool spin(Duration time, Ready&& ready, Between&& between) {
    Deadline over(time);
    do {
      for (int i = yields_ ? 1 : kPolls; i > 0; i--)
        if (ready()) return true;
      between();
      if (yields_) ::sched_yield();
    } while (!over.passed());
    return false;
  }
  /// Sleeps until a link may be ready (Transport::may_be_ready), wake() is called, or `limit` has
  /// passed. May return early. Precondition: the caller has just looked in vain for all that it
  /// waits for. look() is called when peers already notify this sleep; if it returns true, there is
  /// none.
  void sleep(Duration limit, const std::function<bool()>& look = {});
  /// Whether any link may be ready. The caller calls end_wait() before it looks at the links.
  bool may_be_ready();
  void end_wait();
  /// True if wake() was called, and no sleep has ended since.
  bool woken() const { return woken_.load(std::memory_order_relaxed); }
  /// Ends the sleep that runs, else the next one. Any thread.
  void wake();

 private:
  static constexpr int kPolls = 64;
  class Asleep;

  Bells& bells_;
  const bool yields_;
  std::vector<Transport*> parts_;
  std::vector<pollfd> fds_;
  std::mutex mutex_;
  std::unique_ptr<Bell> bell_;  // of the sleep that runs; guarded by mutex_
  std::atomic<bool> woken_{false};
};

}  // namespace ringcoll
