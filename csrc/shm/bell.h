// Wakes up a thread that waits for several things at once, some of them other processes of its
// host. A bell is a pipe, which the thread polls beside sockets and the like. Other processes open
// its end for writing through /proc/<pid>/fd, as they do with memory. A futex would be cheaper. But
// no thread can wait for a futex and a socket at once, nor for several futexes before Linux 5.16.
// An eventfd cannot be opened through /proc.
//
// A bell is taken for one sleep, and then given back. A job has many groups, but few of them sleep
// at one time, and a process has few descriptors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"

namespace ringcoll {

/// Wakes up the one thread that sleeps on it. Any thread may ring it.
class Bell {
 public:
  /// Makes a pipe. If the process may open no more descriptors, there is none, and nobody can ring
  /// the bell.
  Bell();
  /// The descriptor for poll(), readable once the bell was rung. -1, which poll() skips, means that
  /// there is no pipe.
  int fd() const { return read_.get(); }
  /// Tells the pipe from others that had the same descriptor before. 0: there is no pipe.
  uint64_t inode() const { return inode_; }
  void ring() const noexcept;
  /// Empties the pipe, so that fd() is not readable until the bell is rung again.
  void silence() const noexcept;

 private:
  Fd read_, write_;
  uint64_t inode_ = 0;
};

/// The bells of a process. There are as many as there were sleeps at one time. Any thread.
class Bells {
 public:
  /// Returns a bell on which nobody else sleeps.
  std::unique_ptr<Bell> take();
  void give_back(std::unique_ptr<Bell> bell);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Bell>> free_;
  size_t made_ = 0;
};

/// Rings the bells of another process, and keeps the last few open. Any thread.
class BellRopes {
 public:
  /// Rings the bell that process `pid` has as descriptor `fd`, with this inode; 0: none. Does
  /// nothing if the descriptor is not that bell (any more), or cannot be opened. So a sleeper also
  /// wakes up by itself now and then.
  void pull(int pid, int fd, uint64_t inode) noexcept;

 private:
  struct Rope {
    Fd bell;
    uint64_t inode = 0;
  };
  std::mutex mutex_;
  std::array<Rope, 4> ropes_;  // most processes have one bell
  size_t next_ = 0;            // the rope that is replaced next
};

}  // namespace ringcoll
