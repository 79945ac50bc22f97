// The network interfaces of this host, and which one ringcoll uses.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "net/address.h"

namespace ringcoll {

struct Interface {
  std::string name;
  Address address;  // port 0
  bool up = false;  // and running: it has a carrier
  bool loopback = false;
};

/// One entry for each address (IPv6 link-local ones, which need a scope, left out), in the kernel's
/// order, IPv4 first. Throws Error(kTransport).
std::vector<Interface> list_interfaces();

/// `name` if it is not empty, else the first that is up and neither loopback nor a bridge of
/// containers or virtual machines (docker*, virbr*, veth*, br-*), else loopback. Throws
/// Error(kInvalidArgument) that names the interfaces there are.
Interface choose_interface(const std::string& name, std::span<const Interface> interfaces);

}  // namespace ringcoll
