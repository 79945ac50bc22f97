// Which network the ranks of a job use (docs/cluster.md, "Several networks"). Pure: every rank
// computes the same from what the exchange brought.
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
  uint64_t stack = 0;  // the network stack: ranks with the same one share their interfaces
  std::string interface;
  Address address;           // with its port
  int prefix_bits = 0;       // of its network
  int speed_mbps = 0;        // as its driver says; 0 = it does not
  bool is_of_stack = false;  // only ranks of its network stack reach it

  std::string network() const;  // "10.0.0.0/24"
};

/// As text, to be published, at most kMostOffers. decode() throws Error(kTransport) if it is none,
/// or empty.
std::string encode_offers(std::span<const Offer> offers);
std::vector<Offer> decode_offers(std::string_view text);
inline constexpr size_t kMostOffers = 64;
/// "eth0 10.0.0.5/24, ib0 10.1.0.5/16".
std::string describe_offers(std::span<const Offer> offers);

/// The lowest rank of each network stack, rising.
std::vector<Rank> first_of_stacks(std::span<const std::vector<Offer>> offers);

/// An address of each rank that may reach one another.
struct Network {
  std::string name;           // "10.0.0.0/24", "eth0", "the first interface of each host"
  std::vector<int> offer_of;  // by rank: index into its offers
};

/// What is tried, at most kMostNetworks; none only if there are several stacks and some rank has
/// nothing but loopback, which joins no two of them: first the networks
/// in which each rank has an address, then, for fabrics in which each host or rack has a network of
/// its own, the interfaces whose name each rank has, then the first of each rank. Whatever takes
/// the same interface of each rank as one before it is left out: it is the same wire. Within each
/// kind, the fastest as the drivers say come first (the slowest rank counts; unknown is slowest),
/// else in rank 0's order.
std::vector<Network> joint_networks(std::span<const std::vector<Offer>> offers);
inline constexpr size_t kMostNetworks = 8;

/// What a rank found out about each of joint_networks().
struct Trial {
  static constexpr double kNotReached = -1;
  static constexpr double kNotMeasured = 0;
  struct Finding {
    double bytes_per_us = kNotMeasured;
    std::string why;  // it was not reached; else ""
  };
  std::vector<Finding> findings;  // empty: this rank tried nothing

  std::string encode() const;
  /// Throws Error(kTransport) unless it is empty or of `networks` findings.
  static Trial decode(std::string_view text, size_t networks);
};

/// A network that is used, and its rate: that of its slowest pair of hosts, or kNotMeasured.
struct NetworkChoice {
  int network = 0;  // index into joint_networks()
  double bytes_per_us = Trial::kNotMeasured;
};
/// The networks to use, the best first: of those that all trials reached, the first whose rate is
/// near that of the fastest (kNear: between equals the order decides, and not the noise); then
/// those that are not much slower (kWorthIt), for more streams. Where nothing was tried, the first
/// alone. Empty: none reaches everybody.
std::vector<NetworkChoice> choose_networks(std::span<const Trial> trials, size_t networks);
inline constexpr double kNear = 0.8;
inline constexpr double kWorthIt = 0.5;

}  // namespace ringcoll
