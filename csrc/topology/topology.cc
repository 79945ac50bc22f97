#include "topology/topology.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/error.h"
#include "net/wire.h"
#include "topology/numa.h"

namespace ringcoll {
namespace {

constexpr uint32_t kMagic = 0x32434c52;  // "RLC2": the version is in it
constexpr size_t kMaxTextBytes = 256;
constexpr size_t kMaxListBytes = 16 << 10;

std::string read_boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

}  // namespace

Location Location::here() {
  Location location;
  char name[HOST_NAME_MAX + 1] = "?";
  gethostname(name, sizeof name);
  name[sizeof name - 1] = 0;
  location.host_name = name;
  location.host_id = read_boot_id();
  // Without /proc the name has to do.
  if (location.host_id.empty()) location.host_id = location.host_name;
  location.pid = getpid();
  location.cpus = allowed_cpus();
  location.numa_node = numa_node_of(location.cpus);
  return location;
}

std::string Location::encode() const {
  WireWriter writer;
  writer.put(kMagic);
  writer.put<int32_t>(pid);
  writer.put<int32_t>(numa_node);
  writer.put_text(cpu_list(cpus));
  writer.put_text(std::string_view(host_id).substr(0, kMaxTextBytes));
  writer.put_text(std::string_view(host_name).substr(0, kMaxTextBytes));
  return writer.take();
}

Location Location::decode(std::string_view blob) {
  WireReader reader(blob, "the location of a rank");
  check(reader.get<uint32_t>() == kMagic, Code::kTransport,
        "the location of a rank is not of this version of ringcoll; install the same on all hosts");
  Location location;
  location.pid = reader.get<int32_t>();
  location.numa_node = reader.get<int32_t>();
  auto cpus = parse_cpu_list(reader.get_text(kMaxListBytes));
  location.host_id = reader.get_text(kMaxTextBytes);
  location.host_name = reader.get_text(kMaxTextBytes);
  reader.finish();
  check(cpus && std::ranges::is_sorted(*cpus) && location.numa_node >= -1, Code::kTransport,
        "the location of a rank: its CPUs are no list, or its NUMA node is {}", location.numa_node);
  location.cpus = std::move(*cpus);
  return location;
}

Topology::Topology(std::vector<Location> locations) : locations_(std::move(locations)) {
  std::map<std::string, int> numbers;
  // Where a rank's NUMA node first shows up on its host: groups stand in the order of their lowest
  // ranks, so that rank 0 is in the first group of the first host, and first of all.
  std::map<std::pair<int, int>, Rank> group_of;
  std::vector<std::tuple<int, Rank, Rank>> keys;
  for (Rank rank = 0; rank < size(); rank++) {
    const Location& location = locations_[rank];
    int host =
        numbers.try_emplace(location.host_id, static_cast<int>(numbers.size())).first->second;
    host_of_.push_back(host);
    Rank group = group_of.try_emplace({host, location.numa_node}, rank).first->second;
    keys.emplace_back(host, group, rank);
  }
  hosts_ = static_cast<int>(numbers.size());
  std::ranges::sort(keys);
  for (const auto& key : keys) order_.push_back(std::get<2>(key));
}

int Topology::ranks_on_host(Rank rank) const {
  return static_cast<int>(std::ranges::count(host_of_, host_of_[rank]));
}

bool Topology::crowded(Rank rank) const {
  std::set<int> all;
  size_t ranks = 0;
  for (Rank other = 0; other < size(); other++) {
    if (host_of_[other] != host_of_[rank]) continue;
    const auto &mine = locations_[rank].cpus, &theirs = locations_[other].cpus;
    std::vector<int> both;
    std::ranges::set_intersection(mine, theirs, std::back_inserter(both));
    if (both.empty()) continue;
    ranks++;
    all.insert(theirs.begin(), theirs.end());
  }
  return ranks > all.size();
}

std::string Topology::describe(Rank rank) const {
  if (rank < 0 || rank >= size()) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (pid {} on {})", rank, locations_[rank].pid,
                     locations_[rank].host_name);
}

}  // namespace ringcoll
