// Ends a wait in poll() from another thread. The descriptor for that belongs to the wait and not to
// the transport: a job has many parts, and few of them wait at one time.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace ringcoll::tcp {

/// Descriptors for waits of a transport and its parts: as many as there were waits at one time. Any
/// thread.
class WakeFds {
 public:
  /// Returns none if the process may open no more.
  Fd take();
  /// Takes back a descriptor on which nothing is to be read.
  void give_back(Fd fd);

 private:
  std::mutex mutex_;
  std::vector<Fd> free_;
  size_t made_ = 0;
};

/// Wakes up the waits of one transport. One thread at a time uses the transport's endpoints.
class Waker {
 public:
  /// `fds` outlives it.
  explicit Waker(WakeFds& fds) : fds_(fds) {}

  /// Ends the wait that runs, else the next one. Any thread.
  void wake();

  /// A wait, which lasts as long as this object. Used by the thread that waits.
  class Wait {
   public:
    explicit Wait(Waker& waker);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    /// Readable once the wait is to end. -1, which poll() skips, if there is no descriptor.
    int fd() const { return fd_.get(); }
    /// How long to wait at most: zero if the wait is to end, and only briefly if no descriptor can
    /// end it.
    Duration at_most(Duration limit) const;

   private:
    Waker& waker_;
    Fd fd_;
  };

 private:
  WakeFds& fds_;
  std::mutex mutex_;
  bool woken_ = false;   // wake() was called, and no wait has ended since
  int waiting_on_ = -1;  // the descriptor of the wait that runs
};

}  // namespace ringcoll::tcp
