#include "topology/location.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/machine.h"
#include "net/wire.h"
#include "topology/numa.h"

namespace ringcoll {
namespace {

constexpr uint32_t kMagic = 0x35434c52;  // "RLC5": the digit is the version of the format
constexpr size_t kMaxTextBytes = 256;
constexpr size_t kMaxListBytes = 16 << 10;

}  // namespace

Location Location::here(const Config& config, Rank rank) {
  const std::string& hostid = config.hostid;
  check(hostid.size() <= kMaxTextBytes, Code::kInvalidArgument,
        "RINGCOLL_HOSTID has {} bytes; at most {} are allowed", hostid.size(), kMaxTextBytes);
  Location location;
  location.host_name = hostid.empty() ? ringcoll::host_name() : hostid;
  location.host_given = !hostid.empty();
  location.machine = machine_id();
  // A pid is valid in one PID namespace only. Memory of processes in another user namespace may not
  // be opened.
  location.host_id = location.host_given ? hostid
                                         : fmt::format("{} {} {}", location.machine,
                                                       namespace_id("pid"), namespace_id("user"));
  location.pid = getpid();
  location.cpus = allowed_cpus();
  location.socket = socket_of(location.cpus);
  location.numa_node = numa_node_of(location.cpus);
  location.cache = cache_of(location.cpus);
  location.core_cache_kib = static_cast<int>(core_cache_bytes() >> 10);
  location.hints = Hints::of(config.topology, rank == 0);
  return location;
}

std::string Location::encode() const {
  WireWriter writer;
  writer.put(kMagic);
  writer.put<int32_t>(pid);
  for (int what : {socket, numa_node, cache, core_cache_kib}) writer.put<int32_t>(what);
  writer.put_text(cpu_list(cpus));
  writer.put<uint8_t>(host_given);
  for (const std::string* text : {&machine, &host_id, &host_name})
    writer.put_text(std::string_view(*text).substr(0, kMaxTextBytes));
  hints.encode(&writer);
  writer.put<int32_t>(placement.order);
  writer.put(static_cast<uint32_t>(placement.groups.size()));
  for (const std::string& group : placement.groups) writer.put_text(group);
  writer.put_text(placement.why);
  writer.put_text(placement_source);
  return writer.take();
}

Location Location::decode(std::string_view blob) {
  WireReader reader(blob, "the location of a rank");
  check(reader.get<uint32_t>() == kMagic, Code::kTransport,
        "the location of a rank is not of this version of ringcoll; install the same on all hosts");
  Location location;
  location.pid = reader.get<int32_t>();
  for (int* what :
       {&location.socket, &location.numa_node, &location.cache, &location.core_cache_kib})
    *what = reader.get<int32_t>();
  auto cpus = parse_cpu_list(reader.get_text(kMaxListBytes));
  location.host_given = reader.get<uint8_t>() != 0;
  for (std::string* text : {&location.machine, &location.host_id, &location.host_name})
    *text = reader.get_text(kMaxTextBytes);
  location.hints = Hints::decode(&reader);
  location.placement.order = reader.get<int32_t>();
  auto groups = reader.get<uint32_t>();
  check(groups <= kMaxLevels, Code::kTransport, "the location of a rank: {} levels", groups);
  for (uint32_t i = 0; i < groups; i++)
    location.placement.groups.push_back(reader.get_text(kMaxTopologyBytes));
  location.placement.why = reader.get_text(kMaxTopologyBytes);
  location.placement_source = reader.get_text(kMaxTopologyBytes);
  reader.finish();
  check(cpus && std::ranges::is_sorted(*cpus) &&
            std::min({location.socket, location.numa_node, location.cache}) >= -1 &&
            location.core_cache_kib >= 0,
        Code::kTransport,
        "the location of a rank: its CPUs are no list, or its socket, NUMA node and cache are {}, "
        "{} and {}, or a core's cache {} KiB",
        location.socket, location.numa_node, location.cache, location.core_cache_kib);
  location.cpus = std::move(*cpus);
  return location;
}

std::string describe(Rank rank, const Location& location) {
  return fmt::format("rank {} (pid {} on {})", rank, location.pid, location.host_name);
}

std::vector<Location> separate_hosts(std::vector<Location> locations,
                                     const std::function<bool(Rank, Rank)>& maps) {
  std::map<std::string, std::vector<std::vector<Rank>>> parts_of;  // by the id of the supposed host
  for (Rank rank = 0; rank < static_cast<Rank>(locations.size()); rank++) {
    auto& parts = parts_of[locations[rank].host_id];
    auto mine = std::ranges::find_if(parts, [&](const std::vector<Rank>& part) {
      return std::ranges::all_of(part, [&](Rank other) { return maps(other, rank); });
    });
    auto number = mine - parts.begin();
    if (mine == parts.end()) parts.emplace_back();
    parts[number].push_back(rank);
    if (number > 0) locations[rank].host_id += fmt::format(" part {}", number);
  }
  return locations;
}

}  // namespace ringcoll
