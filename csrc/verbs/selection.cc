#include "verbs/selection.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace ringcoll::verbs {
namespace {

constexpr int kMaxPort = 255;

PortWish parse_device(const std::string& item, const std::string& all) {
  size_t colon = item.find(':');
  PortWish wish{.device = item.substr(0, colon)};
  bool well = !wish.device.empty();
  if (colon != std::string::npos) {
    const char* end = item.data() + item.size();
    auto [at, error] = std::from_chars(item.data() + colon + 1, end, wish.port);
    well = well && error == std::errc() && at == end && wish.port >= 1 && wish.port <= kMaxPort;
  }
  check(well, Code::kInvalidArgument,
        "RINGCOLL_DEVICES=\"{}\": \"{}\" is neither a device nor device:port, such as mlx5_0:1",
        all, item);
  return wish;
}

std::string down(const Port& port) {
  std::string state = fmt::format("the port is {} ({})", name_of(port.state), port.physical_state);
  if (port.link_layer == LinkLayer::kEthernet)
    return fmt::format("{}: bring its interface up (ip link set {} up) and check cable and switch",
                       state, port.interface.empty() ? "…" : port.interface);
  if (port.state == PortState::kInit || port.state == PortState::kArmed)
    return state + ": a subnet manager (opensm) must run on the fabric";
  return state + ": check cable and switch";
}

struct Considered {
  const Survey& survey;
  const GidWish& gid;
  Selection selection;

  /// Adds the port to the usable or to the refused ports; returns whether it is usable.
  bool consider(const Device& device, const Port& port) {
    GidChoice choice = choose_gid(port, gid);
    std::string why = objection(device, port, choice);
    if (why.empty())
      selection.usable.push_back(
          {device.name, port, device.limits, device.numa_node, std::move(choice)});
    else
      selection.refused.push_back({name_of(device, port), why});
    return why.empty();
  }
  void consider_all(const Device& device) {
    if (device.ports.empty())
      selection.refused.push_back(
          {device.name, device.problem.empty() ? "it has no port" : device.problem});
    for (const Port& port : device.ports) consider(device, port);
  }
  void consider(const PortWish& wish) {
    auto device = std::ranges::find(survey.devices, wish.device, &Device::name);
    if (device == survey.devices.end()) {
      std::vector<std::string> names;
      for (const Device& there : survey.devices) names.push_back(there.name);
      selection.refused.push_back(
          {wish.device,
           fmt::format("RINGCOLL_DEVICES names it, and there is no such device; there "
                       "are: {}",
                       names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")))});
      return;
    }
    bool any = device->ports.empty();
    if (any) consider_all(*device);
    for (const Port& port : device->ports) {
      if (wish.port != 0 && port.number != wish.port) continue;
      any = true;
      if (consider(*device, port)) break;
    }
    if (!any)
      selection.refused.push_back({fmt::format("{}:{}", wish.device, wish.port),
                                   fmt::format("the device has {} ports", device->ports.size())});
  }
};

}  // namespace

std::string name_of(const Device& device, const Port& port) {
  return PortId{device.name, port.number}.text();
}

std::vector<PortWish> parse_devices(const std::string& text) {
  std::vector<PortWish> wishes;
  for (size_t at = 0; !text.empty() && at <= text.size();) {
    size_t comma = std::min(text.find(',', at), text.size());
    wishes.push_back(parse_device(text.substr(at, comma - at), text));
    at = comma + 1;
  }
  return wishes;
}

std::string objection(const Device& device, const Port& port, const GidChoice& gid) {
  if (!device.problem.empty()) return device.problem;
  if (!port.problem.empty()) return port.problem;
  if (port.state != PortState::kActive) return down(port);
  if (gid.index < 0) return gid.reason;
  bool unaddressed = port.link_layer == LinkLayer::kInfiniBand && port.lid == 0;
  if (unaddressed && !port.global_route_required)
    return "the port has no LID: a subnet manager (opensm) must run on the fabric";
  return "";
}

Selection select_ports(const Survey& survey, std::span<const PortWish> wishes, const GidWish& gid) {
  Considered considered{survey, gid, {}};
  considered.selection.named = !wishes.empty();
  for (const PortWish& wish : wishes) considered.consider(wish);
  if (wishes.empty()) {
    for (const Device& device : survey.devices) considered.consider_all(device);
    std::ranges::stable_sort(considered.selection.usable, std::greater<>(),
                             [](const UsablePort& usable) { return usable.port.gigabits; });
  }
  return std::move(considered.selection);
}

Selection select_ports(const Survey& survey, const Config& config) {
  GidWish gid{.index = static_cast<int>(config.gid_index)};
  return select_ports(survey, parse_devices(config.devices), gid);
}

std::vector<UsablePort> Selection::shared() const {
  std::vector<UsablePort> ports;
  for (const UsablePort& port : usable) {
    const Port &first = usable.front().port, &other = port.port;
    bool alike = other.gigabits == first.gigabits && other.link_layer == first.link_layer;
    if (named || alike) ports.push_back(port);
  }
  return ports;
}

std::string Selection::why_none(const Survey& survey) const {
  if (!survey.problem.empty()) return survey.problem;
  std::string text;
  for (const Refused& r : refused)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", r.name, r.why);
  return text.empty() ? "there is no RDMA port" : text;
}

}  // namespace ringcoll::verbs
