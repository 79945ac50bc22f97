#include "topology/numa.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>

namespace ringcoll {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxCpu = 1 << 16;

std::optional<int> parse_int(std::string_view text) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kMaxCpu)
    return {};
  return value;
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// A set for sched_getaffinity(), with room for `count` CPUs.
class CpuSet {
 public:
  explicit CpuSet(int count) : bytes_(CPU_ALLOC_SIZE(count)), set_(CPU_ALLOC(count)) {
    if (!set_) throw std::bad_alloc();
    CPU_ZERO_S(bytes_, set_.get());
  }
  size_t bytes() const { return bytes_; }
  cpu_set_t* get() { return set_.get(); }

 private:
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };
  size_t bytes_;
  std::unique_ptr<cpu_set_t, Free> set_;
};

// The number in the name of a directory such as "node7".
std::optional<int> node_number(const std::string& name) {
  constexpr std::string_view kNode = "node";
  if (!name.starts_with(kNode)) return {};
  return parse_int(std::string_view(name).substr(kNode.size()));
}

// `file` lists the CPUs that share something with the first of `cpus`. Returns the lowest of them;
// -1 if some of `cpus` are not in the list.
int lowest_sharer(const std::vector<int>& cpus, const std::string& root, const char* file) {
  if (cpus.empty()) return -1;
  auto sharers = parse_cpu_list(read_text(fs::path(root) / fmt::format("cpu{}", cpus[0]) / file));
  if (!sharers || sharers->empty()) return -1;
  std::ranges::sort(*sharers);
  auto shares = [&](int cpu) { return std::ranges::binary_search(*sharers, cpu); };
  return std::ranges::all_of(cpus, shares) ? sharers->front() : -1;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty()) {
    size_t comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    size_t dash = item.find('-');
    auto first = parse_int(item.substr(0, dash));
    auto last = dash == std::string_view::npos ? first : parse_int(item.substr(dash + 1));
    if (!first || !last || *last < *first) return {};
    for (int cpu = *first; cpu <= *last; cpu++) cpus.push_back(cpu);
  }
  return cpus;
}

std::string cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (size_t first = 0, next; first < cpus.size(); first = next) {
    for (next = first + 1; next < cpus.size() && cpus[next] == cpus[next - 1] + 1;) next++;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[first]);
    if (next - first > 1) text += fmt::format("-{}", cpus[next - 1]);
  }
  return text;
}

std::vector<int> allowed_cpus() {
  // The kernel refuses a set with less room than its own CPUs need.
  for (int count = 1024; count <= kMaxCpu; count *= 4) {
    CpuSet set(count);
    if (::sched_getaffinity(0, set.bytes(), set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < count; cpu++)
      if (CPU_ISSET_S(cpu, set.bytes(), set.get())) cpus.push_back(cpu);
    return cpus;
  }
  return {};
}

std::map<int, std::vector<int>> numa_nodes(const std::string& nodes) {
  std::map<int, std::vector<int>> found;
  std::error_code error;
  fs::directory_iterator entries(nodes, error);
  if (error) return found;
  for (const fs::directory_entry& entry : entries) {
    auto number = node_number(entry.path().filename().string());
    if (!number) continue;
    auto cpus = parse_cpu_list(read_text(entry.path() / "cpulist"));
    if (!cpus) continue;
    std::ranges::sort(*cpus);
    found[*number] = std::move(*cpus);
  }
  return found;
}

int numa_node_of(const std::vector<int>& cpus, const std::string& nodes) {
  if (cpus.empty()) return -1;
  for (const auto& [number, of_node] : numa_nodes(nodes)) {
    auto within = [&](int cpu) { return std::ranges::binary_search(of_node, cpu); };
    if (std::ranges::all_of(cpus, within)) return number;
  }
  return -1;
}

int socket_of(const std::vector<int>& cpus, const std::string& root) {
  return lowest_sharer(cpus, root, "topology/package_cpus_list");
}

// Index 3 is the third-level cache; 0 and 1 are the two first-level caches.
int cache_of(const std::vector<int>& cpus, const std::string& root) {
  return lowest_sharer(cpus, root, "cache/index3/shared_cpu_list");
}

// A node's file "distance" has a number for each node, in the order of the nodes.
std::map<int, int> numa_distances(int node, const std::string& nodes) {
  std::map<int, int> distances;
  std::ifstream file(fs::path(nodes) / fmt::format("node{}", node) / "distance");
  for (const auto& [number, cpus] : numa_nodes(nodes)) {
    int distance = 0;
    if (!(file >> distance)) return {};
    distances[number] = distance;
  }
  return distances;
}

}  // namespace ringcoll
