// What ends the sleep of a thread that waits for several things at once, some of them other
// processes of its host: a pipe, which it polls beside sockets and the like. Those others open its
// end for writing through /proc/<pid>/fd, as they do memory. (A futex would be a little cheaper,
// but nobody can wait for one and for a socket at the same time, nor for several of them before
// Linux 5.16; and an eventfd cannot be opened there.)
#pragma once

#include <cstdint>

#include "base/fd.h"

namespace ringcoll {

/// Of one thread, which sleeps; any thread rings.
class Bell {
 public:
  /// Until then nobody can ring it, nor sleep on it. Throws Error(kTransport).
  void make();
  /// To be polled for reading: somebody has rung. -1: not made.
  int fd() const { return read_.get(); }
  /// Tells the pipe from others that had the same descriptor.
  uint64_t inode() const { return inode_; }
  void ring() const noexcept;
  /// Until it is rung again.
  void silence() const noexcept;

 private:
  Fd read_, write_;
  uint64_t inode_ = 0;
};

/// The bell of another process. One thread at a time.
class BellRope {
 public:
  /// Rings the bell that process `pid` has as `fd`, with that inode. What is not that bell (any
  /// more) is left alone, and what cannot be opened is not rung: who sleeps looks up now and then.
  void pull(int pid, int fd, uint64_t inode) noexcept;

 private:
  Fd bell_;
  uint64_t inode_ = 0;
};

}  // namespace ringcoll
