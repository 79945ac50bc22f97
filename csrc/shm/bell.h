// Wakes up a thread that waits for several things at once, some of them other processes of its
// host. A bell is a pipe, which the thread polls beside sockets and the like. Other processes open
// its end for writing through /proc/<pid>/fd, as they do with memory. A futex would be cheaper. But
// no thread can wait for a futex and a socket at once, nor for several futexes before Linux 5.16.
// An eventfd cannot be opened through /proc.
#pragma once

#include <cstdint>

#include "base/fd.h"

namespace ringcoll {

/// Wakes up the one thread that sleeps on it. Any thread may ring it.
class Bell {
 public:
  /// Makes the pipe. Before that, nobody can ring the bell or sleep on it. Throws
  /// Error(kTransport).
  void make();
  /// For poll(): readable when somebody has rung. -1 before make().
  int fd() const { return read_.get(); }
  /// Tells the pipe from others that had the same descriptor before.
  uint64_t inode() const { return inode_; }
  void ring() const noexcept;
  /// Empties the pipe, so that fd() is not readable until the bell is rung again.
  void silence() const noexcept;

 private:
  Fd read_, write_;
  uint64_t inode_ = 0;
};

/// Rings the bell of another process. One thread at a time.
class BellRope {
 public:
  /// Rings the bell that process `pid` has as descriptor `fd`, with this inode; 0: none. Does
  /// nothing if the descriptor is not that bell (any more), or cannot be opened. So a sleeper also
  /// looks up now and then.
  void pull(int pid, int fd, uint64_t inode) noexcept;

 private:
  Fd bell_;
  uint64_t inode_ = 0;
};

}  // namespace ringcoll
