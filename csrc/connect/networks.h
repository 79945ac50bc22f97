// Chooses the networks of a job (docs/cluster.md, "Several networks"). Pure: every rank computes
// the same from what the exchange brought.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "net/address.h"

namespace ringcoll {

/// An address at which a rank listens.
struct Offer {
  uint64_t stack = 0;  // ranks of one network stack share their interfaces
  std::string interface;
  Address address;           // with the port
  int prefix_bits = 0;       // length of its network's prefix
  int speed_mbps = 0;        // according to the driver; 0 = unknown
  bool is_of_stack = false;  // only ranks of the same network stack reach it

  std::string network() const;  // "10.0.0.0/24"
};

/// Text to be published, with at most kMostOffers offers. decode() throws Error(kTransport) if
/// `text` is no such text, or has no offer.
std::string encode_offers(std::span<const Offer> offers);
std::vector<Offer> decode_offers(std::string_view text);
inline constexpr size_t kMostOffers = 64;
/// "eth0 10.0.0.5/24, ib0 10.1.0.5/16".
std::string describe_offers(std::span<const Offer> offers);

/// The lowest rank of each network stack, in rising order.
std::vector<Rank> first_of_stacks(std::span<const std::vector<Offer>> offers);

/// One address of each rank; these addresses may reach one another.
struct Network {
  std::string name;           // "10.0.0.0/24", "eth0", "the first interface of each rank"
  std::vector<int> offer_of;  // by rank: index into its offers
};

/// The networks to try, kMostNetworks at most, in this order:
///
/// - networks (prefixes) in which each rank has an address
/// - interfaces whose name each rank has, for fabrics where each host or rack has a network of its
///   own
/// - the first interface of each rank
///
/// A network is left out if an earlier one takes the same interface of each rank: it is the same
/// wire. Within each kind the fastest come first, by the driver's speed of the slowest rank; an
/// unknown speed is the slowest. Equal ones keep rank 0's order. Loopback does not join two network
/// stacks. So the result is empty only if there are several stacks and a rank has nothing but
/// loopback.
std::vector<Network> joint_networks(std::span<const std::vector<Offer>> offers);
inline constexpr size_t kMostNetworks = 8;

/// What a rank has found out about each of joint_networks().
struct Trial {
  static constexpr double kNotReached = -1;
  static constexpr double kNotMeasured = 0;
  struct Finding {
    double bytes_per_us = kNotMeasured;
    std::string why;  // why it was not reached, or ""
  };
  std::vector<Finding> findings;  // empty: this rank tried no network

  std::string encode() const;
  /// Throws Error(kTransport) unless `text` is empty or has `networks` findings.
  static Trial decode(std::string_view text, size_t networks);
};

/// A network that is used, and the rate of its slowest pair of hosts, or kNotMeasured.
struct NetworkChoice {
  int network = 0;  // index into joint_networks()
  double bytes_per_us = Trial::kNotMeasured;
};
/// The networks to use, the best first. Only networks that all trials reached count. The first is
/// the earliest in order whose rate is at least kNear of the best, so that noise does not decide
/// between equals. Networks of at least kWorthIt of the best rate follow, for further streams. If
/// no rank tried any, the result is the first network alone. Empty: no network reaches all ranks.
std::vector<NetworkChoice> choose_networks(std::span<const Trial> trials, size_t networks);
inline constexpr double kNear = 0.8;
inline constexpr double kWorthIt = 0.5;

}  // namespace ringcoll
