#include "verbs/report.h"

#include <fmt/core.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace ringcoll::verbs {
namespace {

using Json = nlohmann::ordered_json;

const UsablePort* find_usable(const Selection& selection, const Device& device, const Port& port) {
  for (const UsablePort& usable : selection.usable)
    if (usable.device == device.name && usable.port.number == port.number) return &usable;
  return nullptr;
}

std::string heading(const Device& device) {
  const DeviceLimits& l = device.limits;
  if (device.ports.empty()) return fmt::format("{}: {}\n", device.name, device.problem);
  return fmt::format(
      "{}: firmware {}, NUMA node {}, {} queue pairs of {} requests, {} pieces, {} completions, "
      "{} bytes inline\n",
      device.name, device.firmware, device.numa_node, l.queue_pairs, l.work_requests, l.pieces,
      l.completions, l.inline_bytes);
}

std::string line_of(const Device& device, const Port& port) {
  std::string lid = port.lid ? fmt::format(", LID {}", port.lid) : "";
  std::string interface = port.interface.empty() ? "" : ", " + port.interface;
  return fmt::format("  {}:{} {}, {} ({}), {} Gb/s, MTU {}, messages to {} bytes{}{}\n",
                     device.name, port.number, name_of(port.link_layer), name_of(port.state),
                     port.physical_state, port.gigabits, port.active_mtu_bytes,
                     port.max_message_bytes, lid, interface);
}

std::string why_not(const GidChoice& choice, int index) {
  for (const GidChoice::Rejected& r : choice.rejected)
    if (r.index == index) return r.why;
  return "";
}

std::string lines_of_gids(const Port& port, const GidChoice& choice) {
  std::string text;
  for (const GidEntry& e : port.gids) {
    std::string verdict =
        e.index == choice.index ? "used: " + choice.reason : why_not(choice, e.index);
    text += fmt::format("    gid {} {} {} {}: {}\n", e.index, e.gid.text(), name_of(e.type),
                        e.interface, verdict);
  }
  return text;
}

Json json_of(const Port& port) {
  Json gids = Json::array();
  for (const GidEntry& e : port.gids)
    gids.push_back({{"index", e.index},
                    {"gid", e.gid.text()},
                    {"type", name_of(e.type)},
                    {"interface", e.interface}});
  return {{"number", port.number},
          {"problem", port.problem},
          {"state", name_of(port.state)},
          {"physical_state", port.physical_state},
          {"link_layer", name_of(port.link_layer)},
          {"lid", port.lid},
          {"active_mtu_bytes", port.active_mtu_bytes},
          {"max_message_bytes", port.max_message_bytes},
          {"gigabits", port.gigabits},
          {"interface", port.interface},
          {"gids", gids}};
}

Json json_of(const Device& device) {
  const DeviceLimits& l = device.limits;
  Json ports = Json::array();
  for (const Port& port : device.ports) ports.push_back(json_of(port));
  return {{"name", device.name},
          {"problem", device.problem},
          {"firmware", device.firmware},
          {"numa_node", device.numa_node},
          {"limits",
           {{"queue_pairs", l.queue_pairs},
            {"work_requests", l.work_requests},
            {"pieces", l.pieces},
            {"completions", l.completions},
            {"memory_regions", l.memory_regions},
            {"memory_region_bytes", l.memory_region_bytes},
            {"inline_bytes", l.inline_bytes}}},
          {"ports", ports}};
}

Json json_of(const UsablePort& usable) {
  Json rejected = Json::array();
  for (const GidChoice::Rejected& r : usable.gid.rejected)
    rejected.push_back({{"index", r.index}, {"why", r.why}});
  return {{"device", usable.device},         {"port", usable.port.number},
          {"gid_index", usable.gid.index},   {"gid", usable.gid.gid.text()},
          {"gid_reason", usable.gid.reason}, {"gids_rejected", rejected}};
}

}  // namespace

std::string report_text(const Survey& survey, const Selection& selection) {
  if (!survey.problem.empty()) return "RDMA: " + survey.problem + "\n";
  std::string text = fmt::format("locked memory: {}\n{}\n", memlock_text(survey.memlock_bytes),
                                 describe(survey.fork));
  for (const Device& device : survey.devices) {
    text += heading(device);
    for (const Port& port : device.ports) {
      text += line_of(device, port);
      const UsablePort* usable = find_usable(selection, device, port);
      text += lines_of_gids(port, usable ? usable->gid : choose_gid(port, {}));
    }
  }
  for (const UsablePort& usable : selection.usable)
    text += fmt::format("usable: {}\n", usable.link().text());
  for (const Selection::Refused& refused : selection.refused)
    text += fmt::format("not usable: {}: {}\n", refused.place, refused.why);
  return text;
}

std::string report_json(const Survey& survey, const Selection& selection) {
  Json devices = Json::array(), usable = Json::array(), refused = Json::array();
  for (const Device& device : survey.devices) devices.push_back(json_of(device));
  for (const UsablePort& port : selection.usable) usable.push_back(json_of(port));
  for (const Selection::Refused& r : selection.refused)
    refused.push_back({{"place", r.place}, {"why", r.why}});
  bool unlimited = survey.memlock_bytes == std::numeric_limits<uint64_t>::max();
  return Json{{"problem", survey.problem},
              {"fork", describe(survey.fork)},
              {"memlock_bytes", unlimited ? Json() : Json(survey.memlock_bytes)},
              {"devices", devices},
              {"usable", usable},
              {"refused", refused}}
      .dump();
}

}  // namespace ringcoll::verbs
