// Who reaches whom by which transports, and what the links of all pairs follow from. Pure: every
// rank computes the same of what all have said.
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

/// A bit for each row of transports().
using TransportBits = uint32_t;
TransportBits bit_of(const TransportRow& row);
/// The bits of all transports with links of this class.
TransportBits bits_of(LinkClass link);
/// The first transport, in order of preference, whose bit is set; null if there is none.
const TransportRow* first_row(TransportBits bits);

/// What one rank reaches. Ranks side by side in the order of the ring, and so those of a host, are
/// mostly reached alike: they are told by stretches.
struct Reached {
  struct Stretch {
    Rank ranks = 0;
    TransportBits bits = 0;
    bool operator==(const Stretch&) const = default;
  };
  TransportBits offered = 0;       // by the rank itself
  std::vector<Stretch> stretches;  // of all ranks; the rank itself is in a stretch of another's

  /// `bits` by position in the order; `own` is the position of the rank that says it.
  static Reached of(TransportBits offered, const std::vector<TransportBits>& bits, size_t own);
  std::string encode() const;
  /// Throws Error(kTransport) unless it is of `size` ranks, in as many stretches at most.
  static Reached decode(std::string_view text, Rank size);
};

/// What all ranks have said.
class Reach {
 public:
  /// `said` by rank. `order`: that of the ring in which it was said.
  Reach(std::vector<Reached> said, const std::vector<Rank>& order);

  /// What both say of each other.
  TransportBits both(Rank a, Rank b) const { return said(a, b) & said(b, a); }
  /// Whether any rank offers one of these.
  bool offered(TransportBits bits) const;
  /// Whether the ranks of each host reach each other by one of these, all of them.
  bool hosts_share(const Topology& topology, TransportBits bits) const;

  /// What the link of a pair follows from: a transport of its host, else of `networks`.
  struct Links {
    TransportBits networks = ~TransportBits{0};    // what joins all pairs that need a network
    bool needs_network = false;                    // some pair does
    std::optional<std::pair<Rank, Rank>> missing;  // the first pair that nothing joins
  };
  /// Takes the ranks of each host together, and looks at pairs one by one only where hosts or their
  /// ranks differ so much that the answer depends on the pair.
  Links links(const Topology& topology) const;
  /// Within a host by any transport, between hosts not by one that is of a host.
  TransportBits common(const Topology& topology, Rank a, Rank b) const;
  /// Of `common`, with what links() has found; null if there is none.
  static const TransportRow* row_of(TransportBits common, TransportBits networks);

  /// Pairs that links() and hosts_share() have looked at one by one.
  uint64_t pairs_visited() const { return pairs_visited_; }

 private:
  /// What all of some entries have, and what at least one has.
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
