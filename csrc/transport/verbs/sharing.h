// Which rank of a machine uses which of its ports, and which two ports join a pair (docs/rdma.md,
// "Several ports"). Pure: every rank computes the same from what the exchange brought.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "transport/verbs/wire.h"

namespace ringcoll::rdma {

/// The network that a rank's `number`-th port is in: ports with the same one are taken to reach
/// each other. "10.0.0.0/24" of RoCE; of InfiniBand its subnet, and where that has the prefix that
/// every subnet begins with, the port's number in the list too, for then nothing tells one fabric
/// from another. "": not known.
std::string network_of(const std::vector<Address>& ports, size_t number);

/// A rank, and what it may use.
struct Sharer {
  int machine = 0;
  std::vector<Address> ports;  // at least one
};

/// The port of each rank, as index into its list. Considered are ports in networks that every rank
/// has; where there is none, all that RINGCOLL_DEVICES names, else the first of each rank. Of them
/// each rank takes one of the nearest, and of these the one that the fewest of its machine have;
/// who has the least choice takes first, else in the order of `ranks`.
std::vector<size_t> share_ports(std::span<const Sharer> ranks);

/// What a rank brings to a pair: its list, and its share of it.
struct Side {
  const std::vector<Address>& ports;
  size_t share;
};
struct PortPair {
  size_t lower, higher;  // indices into the list of either rank
};
/// The ports that join two ranks, by their numbers the lower and the higher one: on one machine the
/// same for both, for two of its ports need not reach each other; else the shares of both if they
/// are in one network; else a network that both have, the shares' own before others. If no network
/// is known to be common, the ports with the number of the lower one's share, as networks that are
/// routed have it.
PortPair join_ports(const Side& lower, const Side& higher);

}  // namespace ringcoll::rdma
