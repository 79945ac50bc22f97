#include "topology/spread.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "topology/numa.h"

namespace ringcoll {
namespace {

bool contains(const std::vector<int>& cpus, int cpu) {
  return std::ranges::find(cpus, cpu) != cpus.end();
}

}  // namespace

int current_cpu() { return ::sched_getcpu(); }

std::vector<int> roomier_cpus(int here, const std::vector<int>& allowed,
                              const std::vector<int>& taken,
                              const std::map<int, std::vector<int>>& nodes) {
  std::vector<int> all, near;
  for (int cpu : allowed) {
    if (cpu == here || contains(taken, cpu)) continue;
    all.push_back(cpu);
    auto holds_both = [&](const auto& node) {
      return contains(node.second, here) && contains(node.second, cpu);
    };
    if (std::ranges::any_of(nodes, holds_both)) near.push_back(cpu);
  }
  return near.empty() ? all : near;
}

bool Spreader::leave(const std::vector<int>& taken, const std::function<void(int cpu)>& tell) {
  if (rests()) return false;
  last_ = Clock::now();
  std::vector<int> allowed = allowed_cpus();
  static const std::map<int, std::vector<int>> nodes = numa_nodes();  // they do not change
  std::vector<int> others = roomier_cpus(current_cpu(), allowed, taken, nodes);
  if (others.empty()) return false;
  if (tell) {
    size_t choice = static_cast<size_t>(::getpid()) + choices_++;
    others = {others[choice % others.size()]};
    tell(others[0]);
  }
  // The kernel moves a thread at once from a CPU that it may not run on.
  return run_on(others) && run_on(allowed);
}

}  // namespace ringcoll
