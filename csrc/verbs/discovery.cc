#include "verbs/discovery.h"

#include <fmt/ranges.h>
#include <net/if.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "verbs/device_list.h"
#include "verbs/table.h"

namespace ringcoll::verbs {
namespace {

namespace fs = std::filesystem;

std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int read_number(const fs::path& path, int otherwise) {
  std::string text = read_line(path);
  int number = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::vector<std::string> entries_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

fs::path class_of(const std::string& sysfs) { return fs::path(sysfs) / "class/infiniband"; }

// ---- numbers of the specification ----

PortState state_of(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return PortState::kDown;
    case IBV_PORT_INIT:
      return PortState::kInit;
    case IBV_PORT_ARMED:
      return PortState::kArmed;
    case IBV_PORT_ACTIVE:
    case IBV_PORT_ACTIVE_DEFER:
      return PortState::kActive;
    default:
      return PortState::kUnknown;
  }
}

// PortInfo:PortPhysicalState, InfiniBand specification, volume 1, 14.2.5.6.
std::string physical_state_of(uint8_t state) {
  constexpr const char* kNames[] = {"unknown",  "sleeping", "polling",  "disabled",
                                    "training", "link up",  "recovery", "test"};
  return kNames[state < std::size(kNames) ? state : 0];
}

LinkLayer layer_of(const ibv_port_attr& port, const ibv_device& device) {
  if (port.link_layer == IBV_LINK_LAYER_ETHERNET) return LinkLayer::kEthernet;
  if (port.link_layer == IBV_LINK_LAYER_INFINIBAND) return LinkLayer::kInfiniBand;
  // A library that reports no link layer is older than RoCE.
  return device.transport_type == IBV_TRANSPORT_IB ? LinkLayer::kInfiniBand : LinkLayer::kUnknown;
}

// Lanes times the rate of a lane (PortInfo:LinkWidthActive, LinkSpeedActive, as verbs code them).
double gigabits_of(const ibv_port_attr& port) {
  constexpr std::pair<int, int> kLanes[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  constexpr std::pair<int, double> kRates[] = {{1, 2.5}, {2, 5},   {4, 10},  {8, 10},
                                               {16, 14}, {32, 25}, {64, 50}, {128, 100}};
  double lanes = 0, rate = 0;
  for (auto [code, value] : kLanes)
    if (port.active_width == code) lanes = value;
  for (auto [code, value] : kRates)
    if (port.active_speed == code) rate = value;
  return lanes * rate;
}

// ---- GIDs ----

std::string interface_name(unsigned index) {
  char name[IF_NAMESIZE];
  if (index == 0) return "";
  return ::if_indextoname(index, name) ? name : fmt::format("#{}", index);
}

GidType type_of(uint32_t type) {
  if (type == IBV_GID_TYPE_ROCE_V2) return GidType::kRoceV2;
  return type == IBV_GID_TYPE_ROCE_V1 ? GidType::kRoceV1 : GidType::kInfiniBand;
}

Gid gid_of(const ibv_gid& raw) {
  Gid gid;
  std::memcpy(gid.bytes.data(), raw.raw, gid.bytes.size());
  return gid;
}

/// Reads the entries of all ports at once, and keeps the port's. False if the library or the kernel
/// cannot.
bool read_gid_table(const Context& context, size_t room, int port, std::vector<GidEntry>* gids) {
  const Table& calls = context.table();
  if (!calls.query_gid_table) return false;
  std::vector<ibv_gid_entry> entries(room);
  ssize_t count = calls.query_gid_table(context.get(), entries.data(), entries.size(), 0,
                                        sizeof(ibv_gid_entry));
  if (count < 0) return false;
  entries.resize(static_cast<size_t>(count));
  for (const ibv_gid_entry& e : entries)
    if (std::cmp_equal(e.port_num, port))
      gids->push_back({static_cast<int>(e.gid_index), gid_of(e.gid), type_of(e.gid_type),
                       interface_name(e.ndev_ifindex)});
  return true;
}

/// Reads the entries one by one, and their type and interface from sysfs; for libraries before
/// rdma-core 32.
void read_gids_singly(const Context& context, int port, int length, const fs::path& folder,
                      LinkLayer layer, std::vector<GidEntry>* gids) {
  for (int index = 0; index < length; index++) {
    ibv_gid raw{};
    int result = context.table().query_gid(context.get(), static_cast<uint8_t>(port), index, &raw);
    Gid gid = gid_of(raw);
    // An entry that has only a subnet prefix is empty, too.
    if (result != 0 || std::ranges::count(std::span(gid.bytes).subspan(8), 0) == 8) continue;
    std::string number = std::to_string(index);
    std::string type = read_line(folder / "gid_attrs/types" / number);
    GidType other = layer == LinkLayer::kInfiniBand ? GidType::kInfiniBand : GidType::kRoceV1;
    gids->push_back({index, gid, type == "RoCE v2" ? GidType::kRoceV2 : other,
                     read_line(folder / "gid_attrs/ndevs" / number)});
  }
}

/// The port's own interface. The first GID of a RoCE port is always made from it, or from the bond
/// above it. The device's folder names it even if there is no GID.
std::string own_interface(const Port& port, const fs::path& device) {
  if (port.link_layer != LinkLayer::kEthernet) return "";
  if (!port.gids.empty() && !port.gids.front().interface.empty())
    return port.gids.front().interface;
  std::string parent = read_line(device / "parent");  // of a software device
  if (!parent.empty()) return parent;
  std::vector<std::string> names = entries_of(device / "device/net");
  auto ours = [&](const std::string& name) {
    return read_number(device / "device/net" / name / "dev_port", 0) == port.number - 1;
  };
  auto found = std::ranges::find_if(names, ours);
  return found == names.end() ? "" : *found;
}

// ---- devices ----

/// The inline bytes that a queue pair gets if it asks for `bytes`; nothing if it cannot be made.
std::optional<uint32_t> try_inline(const ProtectionDomain& domain, const CompletionQueue& queue,
                                   uint32_t bytes) {
  try {
    QueuePairLimits limits{.send_requests = 1, .receive_requests = 1, .inline_bytes = bytes};
    return QueuePair(domain, queue, queue, limits).limits().inline_bytes;
  } catch (const Error&) {
    return {};
  }
}

/// The most that a queue pair can carry inline, found by making one: verbs has no other way.
uint32_t largest_inline(const Context& context) {
  ProtectionDomain domain(context);
  CompletionQueue queue(context, 2);
  for (uint32_t bytes : {1024u, 512u, 256u, 128u, 64u, 32u})
    if (auto got = try_inline(domain, queue, bytes)) return *got;
  return 0;
}

DeviceLimits limits_of(const ibv_device_attr& a) {
  return {.queue_pairs = a.max_qp,
          .work_requests = a.max_qp_wr,
          .slices = a.max_sge,
          .completions = a.max_cqe,
          .memory_regions = a.max_mr,
          .memory_region_bytes = a.max_mr_size,
          .reads_in_flight = std::min(a.max_qp_rd_atom, a.max_qp_init_rd_atom)};
}

std::string transport_problem(const ibv_device& device) {
  if (device.transport_type == IBV_TRANSPORT_IB) return "";
  if (device.transport_type == IBV_TRANSPORT_IWARP)
    return "it is an iWARP device, whose connections need rdma_cm: ringcoll uses InfiniBand and "
           "RoCE; use tcp over its interface";
  return "it has no reliable connected queue pairs (neither InfiniBand nor RoCE); use tcp";
}

Device read_device(const std::string& name, const std::string& sysfs) {
  Device device{.name = name};
  device.numa_node = read_number(class_of(sysfs) / name / "device/numa_node", -1);
  try {
    Context context(name);
    ibv_device_attr attributes{};
    check_zero(context.table().query_device(context.get(), &attributes), "ibv_query_device",
               context.port_id());
    device.firmware = attributes.fw_ver;
    device.limits = limits_of(attributes);
    device.problem = transport_problem(*context.get()->device);
    for (int number = 1; number <= attributes.phys_port_cnt; number++)
      device.ports.push_back(read_port(context, number, sysfs));
    if (device.problem.empty()) device.limits.inline_bytes = largest_inline(context);
  } catch (const Error& error) {
    device.problem = error.what();
  }
  return device;
}

std::string why_no_device(const std::string& sysfs) {
  std::vector<std::string> known = entries_of(class_of(sysfs));
  if (known.empty())
    return "this host has no RDMA device: /sys/class/infiniband is empty. If it has a card, load "
           "its module (mlx5_ib, …)";
  return fmt::format(
      "the kernel has {}, but libibverbs shows none: load ib_uverbs, install "
      "ibverbs-providers (rdma-core), and give a container /dev/infiniband",
      fmt::join(known, ", "));
}

}  // namespace

Port read_port(const Context& context, int number, const std::string& sysfs) {
  Port port{.number = number};
  auto a = zeroed<ibv_port_attr>();
  if (int result = query_port(context.table(), context.get(), number, &a); result != 0) {
    port.problem = errno_text("ibv_query_port", error_of(result));
    return port;
  }
  port.state = state_of(a.state);
  port.physical_state = physical_state_of(a.phys_state);
  port.link_layer = layer_of(a, *context.get()->device);
  port.lid = a.lid;
  port.global_route_required = (a.flags & IBV_QPF_GRH_REQUIRED) != 0;
  port.active_mtu_bytes = 128u << a.active_mtu;  // code 1 is 256
  port.max_message_bytes = a.max_msg_sz;
  port.gigabits = gigabits_of(a);
  fs::path device = class_of(sysfs) / context.device();
  // The table holds the entries of all ports; no device has more than a few hundred for each.
  size_t room = static_cast<size_t>(std::max(a.gid_tbl_len, 1)) * 8;
  if (!read_gid_table(context, room, number, &port.gids))
    read_gids_singly(context, number, a.gid_tbl_len, device / "ports" / std::to_string(number),
                     port.link_layer, &port.gids);
  port.interface = own_interface(port, device);
  return port;
}

Survey survey(const std::string& sysfs) {
  Survey found;
  found.memlock_bytes = memlock_limit();
  try {
    const Table& calls = table();
    found.fork = fork_support();
    DeviceList list(calls);
    for (const std::string& name : list.names()) found.devices.push_back(read_device(name, sysfs));
    if (found.devices.empty()) found.problem = why_no_device(sysfs);
  } catch (const Error& error) {
    found.problem = error.what();
  }
  return found;
}

const char* name_of(PortState state) {
  constexpr const char* kNames[] = {"unknown", "down", "init", "armed", "active"};
  return kNames[static_cast<size_t>(state)];
}

const char* name_of(LinkLayer layer) {
  constexpr const char* kNames[] = {"unknown", "InfiniBand", "Ethernet"};
  return kNames[static_cast<size_t>(layer)];
}

const char* name_of(GidType type) {
  constexpr const char* kNames[] = {"InfiniBand", "RoCE v1", "RoCE v2"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace ringcoll::verbs
