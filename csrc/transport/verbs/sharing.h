// Which rank of a machine uses which of its ports, and which two ports join a pair (docs/rdma.md,
// "Several ports"). Pure: every rank computes the same from the exchanged addresses.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "transport/verbs/wire.h"

namespace ringcoll::rdma {

/// The network of a rank's `number`-th port; ports in the same network are taken to reach each
/// other. RoCE: "10.0.0.0/24". InfiniBand: the subnet. If its prefix is the one that every subnet
/// begins with, nothing tells fabrics apart. Then the port's number in the list stands for the
/// network. "": not known.
std::string network_of(const std::vector<Address>& ports, size_t number);

/// A rank, and the ports that it may use.
struct Sharer {
  int machine = 0;
  std::vector<Address> ports;  // at least one
};

/// Returns the port of each rank, as index into its list. Considered are ports in networks that
/// every rank has. If there is none, all ports that RINGCOLL_DEVICES names are considered, else the
/// first of each rank. A rank takes one of its nearest ports, and of these one that the fewest
/// ranks of its machine have. Ranks with the least choice take first, otherwise in the order of
/// `ranks`.
std::vector<size_t> share_ports(std::span<const Sharer> ranks);

/// What a rank brings to a pair: its list, and its share of it.
struct Side {
  const std::vector<Address>& ports;
  size_t share;
};
struct PortPair {
  size_t lower, higher;  // indices into the list of either rank
};
/// The ports that join two ranks, the lower and the higher one by number. If the lower one's share
/// is also in the list of the higher one (they are on one machine), both use it. Two ports of a
/// machine need not reach each other. Else both use their shares, if these are in one network. Else
/// they use ports of a network that both have; the networks of the shares come first. If no common
/// network is known, both use the number of the lower rank's share, as suits routed networks. If
/// the higher rank has no such port, both use their first.
PortPair join_ports(const Side& lower, const Side& higher);

}  // namespace ringcoll::rdma
