// Chooses the GID of a port that ringcoll uses. Pure: it works on a described port, so that every
// case is a row of a test.
//
// RoCE: version 2, of the port's own interface (not of a VLAN or a container on top of it), IPv4
// before global and unique-local IPv6 before link-local. InfiniBand: entry 0; packets are routed by
// LID, and across subnets by GID, too.
#pragma once

#include <string>
#include <vector>

#include "verbs/port.h"

namespace ringcoll::verbs {

enum class AddressFamily : uint8_t { kAny, kIpv4, kIpv6 };

struct GidWish {
  int index = -1;                              // RINGCOLL_GID_INDEX; -1 = chosen
  std::string interface;                       // the GID's interface; "" = the port's own
  AddressFamily family = AddressFamily::kAny;  // one that the peers can reach
};

struct GidChoice {
  int index = -1;  // -1: none, `reason` says why
  Gid gid;
  std::string reason;
  struct Rejected {
    int index;
    std::string why;
  };
  std::vector<Rejected> rejected;  // all others
};

GidChoice choose_gid(const Port& port, const GidWish& wish);

/// Whether packets from `mine`, of `port`, to `theirs` carry a global route header.
bool needs_global_route(const Port& port, const Gid& mine, const Gid& theirs);

}  // namespace ringcoll::verbs
