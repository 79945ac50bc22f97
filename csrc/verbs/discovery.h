// Finds the RDMA of this host, from the library and from sysfs.
#pragma once

#include <string>
#include <vector>

#include "verbs/fork.h"
#include "verbs/handles.h"
#include "verbs/port.h"

namespace ringcoll::verbs {

/// What was found, including problems: survey() does not throw for what a host lacks.
struct Survey {
  std::string problem;  // why there is no device, with the remedy; else ""
  ForkSupport fork = ForkSupport::kDisabled;
  uint64_t memlock_bytes = 0;
  std::vector<Device> devices;
};

/// Opens every device and reads its ports. `sysfs`: where the kernel shows its objects.
Survey survey(const std::string& sysfs = "/sys");

/// Reads a port of an open device again, for example after an event.
Port read_port(const Context& context, int number, const std::string& sysfs = "/sys");

}  // namespace ringcoll::verbs
