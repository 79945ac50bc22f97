// The network interfaces of this host, and which of them ringcoll may use.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/address.h"

namespace ringcoll {

struct Interface {
  std::string name;
  Address address;  // port 0
  bool up = false;  // and has a carrier
  bool loopback = false;
  int prefix_bits = 0;  // of the network that the address is in; 24 for 10.0.0.5/24
  int speed_mbps = 0;   // as the driver says; 0 = it does not
};

/// One entry for each address (IPv6 link-local ones, which need a scope, left out), in the kernel's
/// order, IPv4 first. Throws Error(kTransport).
std::vector<Interface> list_interfaces();

/// What the interfaces of this host allow beside their addresses.
struct Links {
  bool loopback_is_up = false;
  bool more_may_come = false;  // there is a network card, or what looks like one
};
Links look_at_links();

/// "10.0.0.0/24": the first `bits` bits of an address, as long as that family's addresses have so
/// many.
std::string network_of(const Address& address, int bits);
/// Whether that is the same of both.
bool share_network(const Address& a, const Address& b, int bits);
/// Whether it means each host itself.
bool is_loopback(const Address& address);

/// Those that `wanted` allows, in their order; those that are down only if no other is. `wanted` is
/// a list such as "eth,ib0,10.1.0.0/16": an interface matches if its name begins with an entry or
/// its address lies in one. "=" before the list: names are meant whole. "^" before all: what
/// matches is excluded, and so is loopback, if anything else is up. Empty: all that are up but
/// loopback and the bridges of containers and virtual machines (docker*, virbr*, veth*, br-*), else
/// loopback. `who` set it; Error(kInvalidArgument) if nothing matches names it and the interfaces
/// there are.
std::vector<Interface> select_interfaces(const std::string& wanted, std::string_view who,
                                         std::span<const Interface> interfaces);

}  // namespace ringcoll
