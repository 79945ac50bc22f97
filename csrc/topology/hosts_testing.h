// A topology of ranks on named hosts, for tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "topology/topology.h"

namespace ringcoll::testing {

/// Rank i on the host named `hosts[i]`.
inline Topology on_hosts(const std::vector<std::string>& hosts) {
  std::vector<Location> locations;
  for (const std::string& host : hosts) {
    Location location;
    location.host_id = location.host_name = host;
    locations.push_back(std::move(location));
  }
  return Topology(std::move(locations));
}

}  // namespace ringcoll::testing
