// Chooses the ports that ringcoll uses. Pure: from a survey and the knobs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "verbs/discovery.h"
#include "verbs/gid.h"

namespace ringcoll::verbs {

/// One entry of RINGCOLL_DEVICES: "mlx5_0:1", or "mlx5_0" for its first usable port.
struct PortWish {
  std::string device;
  int port = 0;  // 0: the first usable one

  bool operator==(const PortWish&) const = default;
};
/// Reads "name:port,name,…"; an empty text gives no wish. Throws Error(kInvalidArgument).
std::vector<PortWish> parse_devices(const std::string& text);

struct UsablePort {
  std::string device;
  Port port;
  DeviceLimits limits;
  int numa_node = -1;
  GidChoice gid;

  PortId port_id() const { return {device, port.number, gid.index}; }
};

struct Selection {
  bool named = false;              // there were wishes
  std::vector<UsablePort> usable;  // in the order of wishes; without wishes the fastest first
  struct Refused {
    std::string name;  // "mlx5_0:2"
    std::string why;   // with the remedy
  };
  std::vector<Refused> refused;  // wished for or found, but cannot be used

  /// The ports that the ranks of a host share out. With wishes these are all usable ones. Without
  /// wishes they are those as fast as the first, and of the same kind.
  std::vector<UsablePort> shared() const;
  /// Why nothing is usable, in one line.
  std::string why_none(const Survey& survey) const;
};

Selection select_ports(const Survey& survey, std::span<const PortWish> wishes, const GidWish& gid);
/// By the knobs RINGCOLL_DEVICES and RINGCOLL_GID_INDEX.
Selection select_ports(const Survey& survey, const Config& config);

/// "mlx5_0:2".
std::string name_of(const Device& device, const Port& port);
/// Why a port cannot be used, with the remedy; "" if it can.
std::string objection(const Device& device, const Port& port, const GidChoice& gid);

}  // namespace ringcoll::verbs
