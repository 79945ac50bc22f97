#include "mesh/reach.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace ringcoll {
namespace {

TransportBits bits(std::initializer_list<const char*> names) {
  TransportBits found = 0;
  for (const char* name : names) found |= bit_of(*find_transport(name));
  return found;
}

/// Ranks on these hosts.
Topology on(const std::vector<int>& hosts) {
  std::vector<Location> locations;
  for (int host : hosts) {
    Location location;
    location.machine = location.host_id = location.host_name = fmt::format("h{}", host);
    locations.push_back(std::move(location));
  }
  return Topology(std::move(locations));
}

std::vector<int> hosts_of(int ranks, int of_a_host) {
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks; rank++) hosts.push_back(rank / of_a_host);
  return hosts;
}

using Says = std::function<TransportBits(Rank from, Rank to)>;

Reached said_by(const Topology& topology, Rank rank, TransportBits offered, const Says& says) {
  std::vector<TransportBits> by_place;
  size_t own = 0;
  for (Rank other : topology.ring_order()) {
    if (other == rank) own = by_place.size();
    by_place.push_back(other == rank ? 0 : says(rank, other));
  }
  return Reached::of(offered, by_place, own);
}

Reach reach_of(const Topology& topology, const Says& says) {
  std::vector<Reached> said;
  for (Rank rank = 0; rank < topology.size(); rank++)
    said.push_back(said_by(topology, rank, bits({"shm", "tcp"}), says));
  return {std::move(said), topology.ring_order()};
}

/// A whole cluster: shared memory within hosts, these networks between them.
Says usual(const Topology& topology, TransportBits networks) {
  return [&topology, networks](Rank a, Rank b) {
    return networks | (topology.same_host(a, b) ? bits({"shm"}) : 0);
  };
}

/// What Reach::links() is to find, pair by pair.
Reach::Links one_by_one(const Topology& topology, const Says& says) {
  Reach::Links links;
  auto common = [&](Rank a, Rank b) {
    return says(a, b) & says(b, a) &
           (topology.same_host(a, b) ? ~TransportBits{0} : ~bits_of(LinkClass::kHost));
  };
  for (bool second : {false, true})
    for (Rank a = 0; a < topology.size(); a++)
      for (Rank b = a + 1; b < topology.size(); b++) {
        const TransportRow* row = first_row(common(a, b));
        bool network = row && row->link == LinkClass::kNetwork;
        if (second && !links.missing && (!row || (network && links.networks == 0)))
          links.missing = {a, b};
        if (second || !network) continue;
        links.networks &= common(a, b);
        links.needs_network = true;
      }
  return links;
}

void expect_same(const Reach::Links& got, const Reach::Links& expected) {
  EXPECT_EQ(got.missing, expected.missing);
  EXPECT_EQ(got.needs_network, expected.needs_network);
  if (expected.missing || !expected.needs_network) return;
  EXPECT_EQ(first_row(got.networks), first_row(expected.networks));
}

TEST(Reached, IsToldByRunsWithoutTheRankItself) {
  TransportBits tcp = bits({"tcp"}), both = bits({"shm", "tcp"});
  using Runs = std::vector<Reached::Stretch>;
  EXPECT_EQ(Reached::of(both, {tcp, both, 0, both, tcp}, 2).stretches,
            (Runs{{1, tcp}, {3, both}, {1, tcp}}));
  EXPECT_EQ(Reached::of(both, {0, both, tcp}, 0).stretches, (Runs{{2, both}, {1, tcp}}));
  EXPECT_EQ(Reached::of(both, {tcp, tcp, 0}, 2).stretches, (Runs{{3, tcp}}));
  EXPECT_EQ(Reached::of(both, {0}, 0).stretches, (Runs{{1, 0}}));
}

TEST(Reached, ComesBackAsItWasSaidAndNothingElseDoes) {
  Reached said = Reached::of(3, {1, 3, 0, 3, 1}, 2);
  std::string text = said.encode();
  Reached again = Reached::decode(text, 5);
  EXPECT_EQ(again.offered, said.offered);
  EXPECT_EQ(again.stretches, said.stretches);
  EXPECT_THROW(Reached::decode(text, 4), Error);
  EXPECT_THROW(Reached::decode(text, 2), Error);
  EXPECT_THROW(Reached::decode(text.substr(1), 5), Error);
  said.stretches = {{-1, 1}, {6, 1}};
  EXPECT_THROW(Reached::decode(said.encode(), 5), Error);
}

// As many bytes for thousands as for few, of ranks that have their host's others side by side.
TEST(Reached, TakesAFewBytesForEachHostThatDiffers) {
  for (int ranks : {64, 4096}) {
    Topology topology = on(hosts_of(ranks, 8));
    Says says = usual(topology, bits({"verbs", "tcp"}));
    for (Rank rank : {0, ranks / 2, ranks - 1})
      EXPECT_LE(said_by(topology, rank, 0, says).encode().size(), 32u);
  }
}

TEST(Reach, VisitsNoPairsWhereHostsAreAlike) {
  for (int of_a_host : {1, 8, 4096}) {
    Topology topology = on(hosts_of(4096, of_a_host));
    Reach reach = reach_of(topology, usual(topology, bits({"verbs", "tcp"})));
    EXPECT_TRUE(reach.hosts_share(topology, bits({"shm"})));
    Reach::Links links = reach.links(topology);
    EXPECT_FALSE(links.missing);
    EXPECT_EQ(links.needs_network, of_a_host < 4096);
    EXPECT_EQ(links.networks, of_a_host < 4096 ? bits({"verbs", "tcp"}) : ~TransportBits{0});
    EXPECT_EQ(reach.pairs_visited(), 0u) << of_a_host;
  }
}

// Some hosts have RDMA.
TEST(Reach, VisitsNoPairsOfAMixedCluster) {
  Topology topology = on(hosts_of(1024, 4));
  Says says = [&](Rank a, Rank b) {
    bool both_have = topology.host_of(a) % 3 == 0 && topology.host_of(b) % 3 == 0;
    return bits({"tcp"}) | (both_have ? bits({"verbs"}) : 0) |
           (topology.same_host(a, b) ? bits({"shm"}) : 0);
  };
  Reach reach = reach_of(topology, says);
  Reach::Links links = reach.links(topology);
  EXPECT_EQ(links.networks, bits({"tcp"}));
  EXPECT_EQ(reach.pairs_visited(), 0u);
}

TEST(Reach, NamesTheFirstPairThatNothingJoins) {
  Topology topology = on({0, 1, 0, 1, 2});
  Says all = usual(topology, bits({"tcp"}));
  Says says = [&](Rank a, Rank b) {
    return a == 3 && (b == 0 || b == 4) ? TransportBits{0} : all(a, b);
  };
  auto links = reach_of(topology, says).links(topology);
  EXPECT_EQ(links.missing, std::make_pair(0, 3));
  // Each pair has a network, and there is none for all.
  Says apart = [&](Rank a, Rank b) {
    return topology.same_host(a, b) ? bits({"shm"}) : (a + b) % 2 ? bits({"tcp"}) : bits({"verbs"});
  };
  EXPECT_EQ(reach_of(topology, apart).links(topology).missing, std::make_pair(0, 1));
}

TEST(Reach, KnowsWhichHostsDoNotShare) {
  Topology topology = on({0, 0, 1, 1, 2});
  Says all = usual(topology, bits({"tcp"}));
  EXPECT_TRUE(reach_of(topology, all).hosts_share(topology, bits({"shm"})));
  Says says = [&](Rank a, Rank b) { return a == 3 && b == 2 ? bits({"tcp"}) : all(a, b); };
  Reach reach = reach_of(topology, says);
  EXPECT_FALSE(reach.hosts_share(topology, bits({"shm"})));
  EXPECT_EQ(reach.both(2, 3), bits({"tcp"}));
  EXPECT_TRUE(reach.offered(bits({"shm"})));
  EXPECT_FALSE(reach.offered(bits({"verbs"})));
}

// Hosts by chance, ranks of which are mostly alike; and what was supposed to be one host is often
// two, so that its ranks do not lie side by side in the order in which all was said.
TEST(Reach, FindsWhatPairsSayOneByOne) {
  std::mt19937 random(11);
  const std::vector<TransportBits> masks = {bits({"tcp"}),
                                            bits({"verbs", "tcp"}),
                                            bits({"shm", "tcp"}),
                                            bits({"loopback"}),
                                            bits({"shm"}),
                                            0,
                                            bits({"shm", "verbs", "tcp", "loopback"})};
  for (int trial = 0; trial < 3000; trial++) {
    auto chance = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    int ranks = 1 + chance(9), hosts = 1 + chance(4);
    std::vector<int> host_of, part_of;
    for (int rank = 0; rank < ranks; rank++) {
      host_of.push_back(chance(hosts));
      part_of.push_back(host_of.back() * 2 + (trial % 3 == 0 ? chance(2) : 0));
    }
    Topology supposed = on(host_of), settled = on(part_of);
    std::vector<std::vector<TransportBits>> said(ranks, std::vector<TransportBits>(ranks));
    TransportBits near = masks[chance(7)], far = masks[chance(7)];
    for (int a = 0; a < ranks; a++)
      for (int b = 0; b < ranks; b++)
        said[a][b] = chance(12) == 0 ? masks[chance(7)] : host_of[a] == host_of[b] ? near : far;
    Says says = [&](Rank a, Rank b) { return said[a][b]; };
    Reach reach = reach_of(supposed, says);
    expect_same(reach.links(settled), one_by_one(settled, says));
    bool share = true;
    for (int a = 0; a < ranks; a++)
      for (int b = 0; b < a; b++)
        share &= !settled.same_host(a, b) || (said[a][b] & said[b][a] & bits({"shm"})) != 0;
    EXPECT_EQ(reach.hosts_share(settled, bits({"shm"})), share);
  }
}

}  // namespace
}  // namespace ringcoll
