#include "verbs/report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace ringcoll::verbs {
namespace {

using Json = nlohmann::ordered_json;

const UsablePort* find(const std::vector<UsablePort>& ports, const Device& device,
                       const Port& port) {
  for (const UsablePort& usable : ports)
    if (usable.device == device.name && usable.port.number == port.number) return &usable;
  return nullptr;
}

std::string others(const std::vector<UsablePort>& shared, const std::string& name) {
  std::vector<std::string> names;
  for (const UsablePort& port : shared)
    if (std::string other = PortId{port.device, port.port.number}.text(); other != name)
      names.push_back(std::move(other));
  return names.empty()
             ? ""
             : fmt::format("; the ranks of a host share it and {}", fmt::join(names, ", "));
}

// Why a port is not usable.
std::string why_refused(const Selection& selection, const std::string& name) {
  auto found = std::ranges::find(selection.refused, name, &Selection::Refused::name);
  return found == selection.refused.end() ? "RINGCOLL_DEVICES names others" : found->why;
}

std::string why_not(const GidChoice& choice, int index) {
  auto found = std::ranges::find(choice.rejected, index, &GidChoice::Rejected::index);
  return found == choice.rejected.end() ? choice.reason : found->why;
}

Json json_of_gids(const Port& port, const GidChoice& choice, bool port_is_chosen) {
  Json gids = Json::array();
  for (const GidEntry& e : port.gids) {
    bool best = e.index == choice.index;
    gids.push_back({{"index", e.index},
                    {"gid", e.gid.text()},
                    {"type", name_of(e.type)},
                    {"interface", e.interface},
                    {"chosen", best && port_is_chosen},
                    {"verdict", best ? choice.reason : why_not(choice, e.index)}});
  }
  return gids;
}

Json json_of(const Device& device, const Port& port, const Selection& selection) {
  const std::vector<UsablePort> shared = selection.shared();
  const UsablePort* usable = find(selection.usable, device, port);
  bool chosen = find(shared, device, port) != nullptr;
  std::string name = name_of(device, port);
  std::string verdict =
      chosen   ? fmt::format("with gid {}{}", usable->gid.index, others(shared, name))
      : usable ? fmt::format("usable, but {} comes first, and it is not as fast or of another kind",
                             shared.front().port_id().text())
               : why_refused(selection, name);
  GidChoice choice = usable ? usable->gid : choose_gid(port, {});
  return {{"name", name},
          {"number", port.number},
          {"problem", port.problem},
          {"state", name_of(port.state)},
          {"physical_state", port.physical_state},
          {"link_layer", name_of(port.link_layer)},
          {"lid", port.lid},
          {"active_mtu_bytes", port.active_mtu_bytes},
          {"max_message_bytes", port.max_message_bytes},
          {"gigabits", port.gigabits},
          {"interface", port.interface},
          {"chosen", chosen},
          {"verdict", verdict},
          {"gids", json_of_gids(port, choice, chosen)}};
}

Json json_of(const DeviceLimits& l) {
  return {{"queue_pairs", l.queue_pairs},
          {"work_requests", l.work_requests},
          {"pieces", l.slices},
          {"completions", l.completions},
          {"memory_regions", l.memory_regions},
          {"memory_region_bytes", l.memory_region_bytes},
          {"inline_bytes", l.inline_bytes}};
}

Json json_of(const Device& device, const Selection& selection) {
  Json ports = Json::array();
  for (const Port& port : device.ports) ports.push_back(json_of(device, port, selection));
  return {{"name", device.name},
          {"problem", device.problem},
          {"firmware", device.firmware},
          {"numa_node", device.numa_node},
          {"limits", json_of(device.limits)},
          {"ports", ports}};
}

Json json_of_patience(const Config& config) {
  auto timeout = static_cast<int>(config.qp_timeout), retries = static_cast<int>(config.qp_retries);
  return {{"timeout_s", retry_seconds(timeout, 0)},
          {"retries", retries},
          {"gives_up_after_s", retry_seconds(timeout, retries)}};
}

// What RINGCOLL_DEVICES names although it does not exist here.
Json json_of_refused(const Survey& survey, const Selection& selection) {
  Json refused = Json::array();
  for (const Selection::Refused& r : selection.refused) {
    bool is_port = std::ranges::any_of(survey.devices, [&](const Device& device) {
      return std::ranges::any_of(device.ports,
                                 [&](const Port& port) { return name_of(device, port) == r.name; });
    });
    bool is_device = std::ranges::count(survey.devices, r.name, &Device::name) > 0;
    if (!is_port && !is_device) refused.push_back({{"name", r.name}, {"why", r.why}});
  }
  return refused;
}

}  // namespace

std::string report_json(const Survey& survey, const Selection& selection, const Config& config) {
  Json devices = Json::array();
  for (const Device& device : survey.devices) devices.push_back(json_of(device, selection));
  bool unlimited = survey.memlock_bytes == std::numeric_limits<uint64_t>::max();
  return Json{{"problem", survey.problem},
              {"fork", describe(survey.fork)},
              {"memlock_bytes", unlimited ? Json() : Json(survey.memlock_bytes)},
              {"queue_pairs", json_of_patience(config)},
              {"refused", json_of_refused(survey, selection)},
              {"devices", devices}}
      .dump();
}

}  // namespace ringcoll::verbs
