// CPUs: those that a thread may run on, and what they share, as the kernel tells it: sockets and
// caches in /sys/devices/system/cpu, NUMA nodes in /sys/devices/system/node.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringcoll {

/// CPUs in a list such as "0-3,8,10-11"; nothing if it is not one.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);
/// The list of `cpus`, which rise.
std::string cpu_list(const std::vector<int>& cpus);
/// CPUs that the calling thread may run on.
std::vector<int> allowed_cpus();
/// The CPUs of each node, rising, by its number. `nodes` is the directory with node0/cpulist,
/// node1/cpulist, …
std::map<int, std::vector<int>> numa_nodes(const std::string& nodes = "/sys/devices/system/node");
/// The one node that holds all of `cpus`; -1 if they lie on several, or it is not known.
int numa_node_of(const std::vector<int>& cpus,
                 const std::string& nodes = "/sys/devices/system/node");
/// The one socket, and the one third-level cache, that all of `cpus` have in common, by its lowest
/// CPU; -1 if they have several, or it is not known. `root` is the directory with cpu0/, cpu1/, …
int socket_of(const std::vector<int>& cpus, const std::string& root = "/sys/devices/system/cpu");
int cache_of(const std::vector<int>& cpus, const std::string& root = "/sys/devices/system/cpu");
/// How far each node is from `node`, as the firmware has it (10: the node itself); empty if that is
/// not known.
std::map<int, int> numa_distances(int node, const std::string& nodes = "/sys/devices/system/node");

}  // namespace ringcoll
