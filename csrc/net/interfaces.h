// The network interfaces of this host, and those that ringcoll may use.
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
  bool up = false;  // up, with a carrier
  bool loopback = false;
  int prefix_bits = 0;  // prefix length of the address's network; 24 for 10.0.0.5/24
  int speed_mbps = 0;   // according to the driver; 0 = unknown
};

/// Lists one entry for each address, in the kernel's order, IPv4 first. IPv6 link-local addresses
/// are left out, since they need a scope. Throws Error(kTransport).
std::vector<Interface> list_interfaces();

/// What the interfaces allow, whether they have addresses or not.
struct Links {
  bool loopback_is_up = false;
  bool more_may_come = false;  // there is a network card, or a device that looks like one
};
Links look_at_links();

/// The network of an address, such as "10.0.0.0/24". `bits` is its prefix length, at most the
/// length of an address of that family.
std::string network_of(const Address& address, int bits);
/// Whether both addresses are in one network of this prefix length.
bool share_network(const Address& a, const Address& b, int bits);
/// Whether the address is loopback, which means a different host on each host.
bool is_loopback(const Address& address);

/// Returns the interfaces that `wanted` allows, in their order. Those that are down are returned
/// only if no other is allowed.
///
/// `wanted` is a list such as "eth,ib0,10.1.0.0/16". An interface matches if its name begins with
/// an entry, or if its address lies in one. "=" before the list: names must match whole. "^" before
/// all: excludes what matches, and loopback too if anything else is left. Empty: all that are up
/// but loopback and bridges of containers and virtual machines (docker*, virbr*, veth*, br-*), else
/// loopback.
///
/// `who` names the source of `wanted`. Throws Error(kInvalidArgument) if nothing matches, naming
/// `who` and the interfaces that exist.
std::vector<Interface> select_interfaces(const std::string& wanted, std::string_view who,
                                         std::span<const Interface> interfaces);

}  // namespace ringcoll
