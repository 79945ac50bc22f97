// Where a thread of a test runs. The library itself never changes the affinity of a thread.
#pragma once

#include <sched.h>

#include <vector>

#include "topology/numa.h"

namespace ringcoll::testing {

/// From now on the calling thread runs on these CPUs. False if the kernel refuses.
inline bool run_on(const std::vector<int>& cpus) {
  if (cpus.empty()) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  return ::sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace ringcoll::testing
