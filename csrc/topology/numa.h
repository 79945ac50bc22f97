// The CPUs that a thread may run on, and what they share. The kernel lists sockets and caches in
// /sys/devices/system/cpu, and NUMA nodes in /sys/devices/system/node.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringcoll {

/// Parses a list such as "0-3,8,10-11". Nothing if `text` is malformed.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);
/// Such a list of `cpus`, which must be in rising order.
std::string cpu_list(const std::vector<int>& cpus);
/// The CPUs that the calling thread may run on; empty if they are unknown.
std::vector<int> allowed_cpus();
/// The CPUs of each node, rising, by the node's number. `nodes` is the directory that has
/// node0/cpulist, node1/cpulist, …
std::map<int, std::vector<int>> numa_nodes(const std::string& nodes = "/sys/devices/system/node");
/// The node that has all of `cpus`; -1 if they are on several nodes, or it is unknown.
int numa_node_of(const std::vector<int>& cpus,
                 const std::string& nodes = "/sys/devices/system/node");
/// The socket, or the third-level cache, that all of `cpus` share, named by its lowest CPU; -1 if
/// they are on several, or it is unknown. `root` is the directory that has cpu0/, cpu1/, …
int socket_of(const std::vector<int>& cpus, const std::string& root = "/sys/devices/system/cpu");
int cache_of(const std::vector<int>& cpus, const std::string& root = "/sys/devices/system/cpu");
/// The distance of each node from `node`, as the firmware reports it (10: the node itself). Empty
/// if it is unknown.
std::map<int, int> numa_distances(int node, const std::string& nodes = "/sys/devices/system/node");

}  // namespace ringcoll
