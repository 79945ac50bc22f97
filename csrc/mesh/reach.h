// Which ranks reach each other by which transports, and the links of all pairs that follow. Pure:
// every rank computes the same from what all ranks said.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "topology/topology.h"
#include "transport/transport.h"

namespace ringcoll {

/// One bit for each row of transports().
using TransportBits = uint32_t;
TransportBits bit_of(const TransportRow& row);
/// The bits of all transports whose links are of this class.
TransportBits bits_of(LinkClass link);
/// The preferred transport of those whose bit is set; null if there is none.
const TransportRow* first_row(TransportBits bits);

/// What one rank reaches. Ranks that are neighbours in the ring's order, such as those of a host,
/// are mostly reached alike, so the message has one entry for each stretch of them.
struct Reached {
  struct Stretch {
    Rank ranks = 0;
    TransportBits bits = 0;
    bool operator==(const Stretch&) const = default;
  };
  TransportBits offered = 0;       // by the rank itself
  std::vector<Stretch> stretches;  // of all ranks; the rank itself joins a neighbour's

  /// `bits` by position in the order; `own` is the position of the rank that says it.
  static Reached of(TransportBits offered, const std::vector<TransportBits>& bits, size_t own);
  std::string encode() const;
  /// Throws Error(kTransport) unless the stretches cover `size` ranks and are at most as many.
  static Reached decode(std::string_view text, Rank size);
};

/// What all ranks have said.
class Reach {
 public:
  /// `said` by rank. `order`: the order of the ring that the stretches refer to.
  Reach(std::vector<Reached> said, const std::vector<Rank>& order);

  /// The transports by which each of the two reaches the other.
  TransportBits both(Rank a, Rank b) const { return said(a, b) & said(b, a); }
  /// True if any rank offers one of these.
  bool offered(TransportBits bits) const;
  /// True if on each host all ranks reach one another by one of these.
  bool hosts_share(const Topology& topology, TransportBits bits) const;

  /// Decides the link of each pair: a transport within its host, else the preferred one of
  /// `networks`.
  struct Links {
    TransportBits networks = ~TransportBits{0};  // those that join every pair that needs a network
    bool needs_network = false;                  // some pair does
    std::optional<std::pair<Rank, Rank>> missing;  // the first pair without any transport
  };
  /// Treats the ranks of each host together. It looks at single pairs only where hosts or their
  /// ranks differ so much that the answer depends on the pair.
  Links links(const Topology& topology) const;
  /// The transports that join a pair: all of both() within a host, and between hosts all but those
  /// of class kHost.
  TransportBits common(const Topology& topology, Rank a, Rank b) const;
  /// The transport of a pair, from its common() and the `networks` of links(); null if there is
  /// none.
  static const TransportRow* row_of(TransportBits common, TransportBits networks);

  /// How many pairs links() and hosts_share() have looked at one by one.
  uint64_t pairs_visited() const { return pairs_visited_; }

 private:
  /// The transports that all entries have, and those that at least one has.
  struct Seen {
    TransportBits all = ~TransportBits{0};
    TransportBits some = 0;
    bool is_decided() const;
  };
  struct Positions {
    size_t first, end;
  };
  TransportBits said(Rank from, Rank to) const;
  void see(Rank from, Positions positions, Seen* seen) const;
  std::optional<std::vector<Positions>> positions_of_hosts(const Topology& topology) const;
  Seen within(Positions host) const;
  Seen beyond(const std::vector<Positions>& hosts) const;
  std::optional<Links> links_by_hosts(const Topology& topology) const;
  bool look_within(Positions host, Links* links) const;
  Links links_by_pairs(const Topology& topology) const;
  template <typename Visit>
  void for_each_pair(Visit&& visit) const;

  struct Row {
    TransportBits offered = 0;
    std::vector<size_t> ends;  // of its stretches, as positions
    std::vector<TransportBits> bits;
  };
  std::vector<Row> rows_;         // by rank
  std::vector<Rank> order_;       // by position
  std::vector<size_t> position_;  // by rank
  mutable uint64_t pairs_visited_ = 0;
};

}  // namespace ringcoll
