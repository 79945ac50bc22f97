// Room for ranks that talk to one another: each on a CPU of its own or, where there are more ranks
// than CPUs, as many on each.
//
// The kernel may put a thread that is woken on the CPU of the one that woke it. While other CPUs
// are idle that is soon undone; where all of them are busy, two ranks that wake one another stay on
// one CPU for a second and more (seen on Linux 6.18; perf/README.md), where each that polls keeps
// the other from running.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "base/clock.h"

namespace ringcoll {

/// The CPU that the calling thread runs on; -1 if the kernel does not say.
int current_cpu();

/// Where a thread on CPU `here` can make room: those of `allowed` that are neither `here` nor
/// `taken`; of the NUMA node of `here` if there are any. Pure.
std::vector<int> roomier_cpus(int here, const std::vector<int>& allowed,
                              const std::vector<int>& taken,
                              const std::map<int, std::vector<int>>& nodes);

/// Moves threads. One thread at a time.
class Spreader {
 public:
  /// Moves the calling thread to one of its roomier_cpus(). Its affinity is the same afterwards;
  /// what another thread changes of it meanwhile is lost. False: there is no such CPU, the kernel
  /// refuses, or the last attempt was less than kRest ago.
  /// With `tell` to one of them, of which that hears before the thread moves: to another one than
  /// other processes choose, as far as that can be had without asking them.
  bool leave(const std::vector<int>& taken, const std::function<void(int cpu)>& tell = {});
  /// Whether leave() would do nothing, for that reason.
  bool rests() const { return Clock::now() - last_ < kRest; }

  static constexpr Duration kRest = std::chrono::milliseconds(10);

 private:
  Clock::time_point last_ = Clock::now() - kRest;
  size_t choices_ = 0;
};

}  // namespace ringcoll
