// RDMA devices and ports as values: what discovery.h reads and gid.h and selection.h choose from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verbs/queue_pair.h"

namespace ringcoll::verbs {

enum class PortState : uint8_t { kUnknown, kDown, kInit, kArmed, kActive };
enum class LinkLayer : uint8_t { kUnknown, kInfiniBand, kEthernet };
enum class GidType : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

const char* name_of(PortState state);
const char* name_of(LinkLayer layer);
const char* name_of(GidType type);

/// One entry of a port's GID table.
struct GidEntry {
  int index = 0;
  Gid gid;
  GidType type = GidType::kInfiniBand;
  std::string interface;  // network interface it belongs to; "" = not known here
};

struct Port {
  int number = 0;
  std::string problem;  // why the rest could not be read; else ""
  PortState state = PortState::kUnknown;
  std::string physical_state;  // "link up", "polling", …
  LinkLayer link_layer = LinkLayer::kUnknown;
  uint16_t lid = 0;
  bool global_route_required = false;  // InfiniBand that is addressed by GID only
  uint32_t active_mtu_bytes = 0;
  uint32_t max_message_bytes = 0;
  double gigabits = 0;         // per second
  std::string interface;       // the port's own network interface; "" on most InfiniBand ports
  std::vector<GidEntry> gids;  // without the empty ones
};

struct DeviceLimits {
  int queue_pairs = 0;
  int work_requests = 0;  // in one queue
  int slices = 0;         // in one gather list
  int completions = 0;    // in one completion queue
  int memory_regions = 0;
  uint64_t memory_region_bytes = 0;
  uint32_t inline_bytes = 0;  // found by making a queue pair
  int reads_in_flight = 0;    // that a queue pair may have outstanding, and serve
};

struct Device {
  std::string name;
  std::string problem;  // why it cannot be used at all; else ""
  std::string firmware;
  int numa_node = -1;  // -1: not known
  DeviceLimits limits;
  std::vector<Port> ports;
};

}  // namespace ringcoll::verbs
