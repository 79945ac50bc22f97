// A topology of ranks on named hosts, for tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "topology/topology.h"

namespace ringcoll::testing {

/// A rank that is bound to the CPU `cpu` of a socket of a host.
inline Location on_socket(const std::string& host, int socket, int cpu) {
  Location location;
  location.machine = location.host_id = location.host_name = host;
  location.socket = socket;
  location.cpus = {cpu};
  return location;
}

/// `hosts` of two sockets of `ranks` ranks each, which are dealt out to the sockets in turn.
inline Topology on_sockets(int hosts, int ranks) {
  std::vector<Location> locations;
  for (int host = 0; host < hosts; host++)
    for (int i = 0; i < 2 * ranks; i++)
      locations.push_back(on_socket(std::string(1, static_cast<char>('a' + host)), i % 2 * 64, i));
  return Topology(std::move(locations));
}

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
