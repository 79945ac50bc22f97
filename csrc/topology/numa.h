// NUMA nodes as the kernel tells them in /sys/devices/system/node.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringcoll {

/// CPUs in a list such as "0-3,8,10-11"; nothing if it is not one.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);
/// The list of `cpus`, which rise.
std::string cpu_list(const std::vector<int>& cpus);
/// CPUs that this process may run on.
std::vector<int> allowed_cpus();
/// The one node that holds all of `cpus`; -1 if they lie on several, or it is not known. `nodes` is
/// the directory with node0/cpulist, node1/cpulist, …
int numa_node_of(const std::vector<int>& cpus,
                 const std::string& nodes = "/sys/devices/system/node");

}  // namespace ringcoll
