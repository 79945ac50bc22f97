#include "transport/verbs/sharing.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace ringcoll::rdma {
namespace {

verbs::Gid gid_of(const std::string& text) {
  verbs::Gid gid;
  std::string ipv6 = text.find(':') == std::string::npos ? "::ffff:" + text : text;
  EXPECT_EQ(::inet_pton(AF_INET6, ipv6.c_str(), gid.bytes.data()), 1) << text;
  return gid;
}

/// A port of RoCE at `distance`.
Address roce(const std::string& ip, int distance = 0, int bits = 24) {
  return {.link_layer = static_cast<uint8_t>(verbs::LinkLayer::kEthernet),
          .gid_type = static_cast<uint8_t>(verbs::GidType::kRoceV2),
          .prefix_bits = static_cast<uint8_t>(bits),
          .distance = static_cast<uint8_t>(distance),
          .gid = gid_of(ip)};
}
Address infiniband(const std::string& gid) {
  return {.link_layer = static_cast<uint8_t>(verbs::LinkLayer::kInfiniBand), .gid = gid_of(gid)};
}
std::vector<Address> named(std::vector<Address> ports) {
  for (Address& port : ports) port.named = 1;
  return ports;
}

/// The ports of a host, one network for each, to a rank at these distances.
std::vector<Address> rails(int host, const std::vector<int>& distances) {
  std::vector<Address> ports;
  for (size_t i = 0; i < distances.size(); i++)
    ports.push_back(roce(fmt::format("10.0.{}.{}", i, host + 1), distances[i]));
  return ports;
}

using Shares = std::vector<size_t>;

/// Of ranks of one machine at these distances from its ports.
Shares shares_of(const std::vector<std::vector<int>>& distances) {
  std::vector<Sharer> ranks;
  for (const auto& of_rank : distances) ranks.push_back({0, rails(0, of_rank)});
  return share_ports(ranks);
}

TEST(SharePorts, RanksThatAreEquallyFarAreDealtOutEvenly) {
  EXPECT_EQ(shares_of({{0, 0}, {0, 0}}), (Shares{0, 1}));
  EXPECT_EQ(shares_of({{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}}), (Shares{0, 1, 0, 1, 0}));
  EXPECT_EQ(shares_of({{0, 0, 0, 0}, {0, 0, 0, 0}}), (Shares{0, 1}));
  EXPECT_EQ(shares_of({{0}, {0}}), (Shares{0, 0}));
}

TEST(SharePorts, TheNearestComesFirst) {
  EXPECT_EQ(shares_of({{21, 10}, {10, 21}}), (Shares{1, 0}));
  // Two nodes with two ports each.
  EXPECT_EQ(shares_of({{10, 10, 21, 21}, {10, 10, 21, 21}, {21, 21, 10, 10}, {21, 21, 10, 10}}),
            (Shares{0, 1, 2, 3}));
  // Four nodes in two sockets, ports at two of them: each has one in its own socket.
  EXPECT_EQ(shares_of({{10, 32}, {12, 32}, {32, 12}, {32, 10}}), (Shares{0, 0, 1, 1}));
  // A port that is near nobody is left alone.
  EXPECT_EQ(shares_of({{10, 21}, {10, 21}}), (Shares{0, 0}));
}

TEST(SharePorts, WhoIsBoundNowhereTakesWhatIsLeft) {
  EXPECT_EQ(shares_of({{0, 0}, {10, 21}}), (Shares{1, 0}));
  EXPECT_EQ(shares_of({{0, 0}, {0, 0}, {10, 21}, {10, 21}}), (Shares{1, 1, 0, 0}));
}

// For every number of ranks and ports: all are used, none by more than one rank above another.
TEST(SharePorts, IsEven) {
  for (size_t ranks = 1; ranks <= 20; ranks++)
    for (size_t ports = 1; ports <= kMostPorts; ports++) {
      std::map<size_t, size_t> users;
      for (size_t port = 0; port < ports; port++) users[port] = 0;
      for (size_t share : shares_of({ranks, std::vector<int>(ports)})) users[share]++;
      auto [least, most] = std::ranges::minmax_element(users, {}, [](auto& u) { return u.second; });
      EXPECT_EQ(users.size(), ports);
      EXPECT_LE(most->second - least->second, 1u) << ranks << " ranks, " << ports << " ports";
    }
}

TEST(SharePorts, RanksInTheSamePlaceOfAlikeMachinesHaveTheSame) {
  std::vector<Sharer> ranks;
  for (int machine : {0, 1, 2})
    for (int i = 0; i < 3; i++)
      ranks.push_back({machine, rails(machine, i == 0 ? std::vector{21, 10} : std::vector{0, 0})});
  EXPECT_EQ(share_ports(ranks), (Shares{1, 0, 0, 1, 0, 0, 1, 0, 0}));
}

TEST(SharePorts, OnlyNetworksThatAllHaveAreShared) {
  // The second port of machine 0 leads to storage.
  std::vector<Sharer> ranks = {{0, {roce("10.0.0.1"), roce("172.16.0.1")}},
                               {0, {roce("10.0.0.1"), roce("172.16.0.1")}},
                               {1, {roce("192.168.0.2"), roce("10.0.0.2")}}};
  EXPECT_EQ(share_ports(ranks), (Shares{0, 0, 1}));
}

// A network for each host, as in a routed fabric: which ports reach one another is not known.
TEST(SharePorts, WhereNoNetworkIsCommonTheFirstUnlessOthersAreNamed) {
  std::vector<Address> a = {roce("10.0.0.1", 0, 31), roce("10.0.0.3", 0, 31)};
  std::vector<Address> b = {roce("10.0.1.1", 0, 31), roce("10.0.1.3", 0, 31)};
  EXPECT_EQ(share_ports(std::vector<Sharer>{{0, a}, {0, a}, {1, b}, {1, b}}), (Shares{0, 0, 0, 0}));
  EXPECT_EQ(
      share_ports(std::vector<Sharer>{{0, named(a)}, {0, named(a)}, {1, named(b)}, {1, named(b)}}),
      (Shares{0, 1, 0, 1}));
}

// RINGCOLL_DEVICES may differ: what another rank of the machine has is counted by its GID.
TEST(SharePorts, ListsOfOneMachineMayDiffer) {
  Address x = roce("10.0.0.1"), y = roce("10.0.0.2");
  EXPECT_EQ(share_ports(std::vector<Sharer>{{0, {y}}, {0, {y, x}}, {0, {x, y}}}),
            (Shares{0, 1, 0}));
  EXPECT_EQ(share_ports(std::vector<Sharer>{{0, {y, x}}, {0, {y}}}), (Shares{1, 0}));
}

TEST(NetworkOf, IsThePrefixOrTheSubnet) {
  EXPECT_EQ(network_of({roce("10.1.2.3", 0, 20)}, 0), "10.1.0.0/20");
  EXPECT_EQ(network_of({roce("fd77::5", 0, 64)}, 0), "fd77::/64");
  EXPECT_EQ(network_of({roce("fe80::5", 0, 0)}, 0), "");
  auto subnet = infiniband("fec0:0:0:7::5");
  EXPECT_EQ(network_of({subnet}, 0), network_of({infiniband("fe80::1"), subnet}, 1));
  EXPECT_NE(network_of({subnet}, 0), network_of({infiniband("fec0:0:0:8::5")}, 0));
  // Every subnet begins with this prefix: the first ports of two hosts, the second of both.
  std::vector<Address> ports = {infiniband("fe80::1"), infiniband("fe80::2")};
  EXPECT_NE(network_of(ports, 0), network_of(ports, 1));
  EXPECT_EQ(network_of(ports, 0), network_of({infiniband("fe80::3")}, 0));
}

PortPair join(const std::vector<Address>& a, size_t share_a, const std::vector<Address>& b,
              size_t share_b) {
  return join_ports({a, share_a}, {b, share_b});
}
void expect_pair(PortPair pair, size_t lower, size_t higher) {
  EXPECT_EQ(std::pair(pair.lower, pair.higher), std::pair(lower, higher));
}

TEST(JoinPorts, UsesTheSharesOfBothInOneNetwork) {
  std::vector<Address> a = {roce("10.0.0.1"), roce("10.0.0.2")},
                       b = {roce("10.0.0.3"), roce("10.0.0.4")};
  expect_pair(join(a, 0, b, 1), 0, 1);
  expect_pair(join(a, 1, b, 0), 1, 0);
}

TEST(JoinPorts, ElseANetworkThatBothHave) {
  auto a = rails(0, {0, 0}), b = rails(1, {0, 0});
  expect_pair(join(a, 1, b, 1), 1, 1);
  expect_pair(join(a, 0, b, 1), 0, 0);  // the lower rank's
  expect_pair(join(a, 1, b, 0), 1, 1);
  std::vector<Address> one = {b[0]};
  expect_pair(join(a, 1, one, 0), 0, 0);  // the higher rank's, for it has no other
  expect_pair(join({roce("10.9.0.1"), a[1]}, 0, {roce("10.8.0.1"), b[1]}, 0), 1, 1);
}

// Two ports of one network namespace need not reach each other, however near they are.
TEST(JoinPorts, OnOneMachineTheSamePort) {
  std::vector<Address> ports = {roce("10.0.0.1"), roce("10.0.0.2")};
  expect_pair(join(ports, 0, ports, 1), 0, 0);
  expect_pair(join(ports, 1, {ports[1], ports[0]}, 1), 1, 0);
}

TEST(JoinPorts, WhereNothingIsKnownPortsOfTheSameNumber) {
  std::vector<Address> a = {roce("10.0.0.1", 0, 31), roce("10.0.0.3", 0, 31)},
                       b = {roce("10.0.1.1", 0, 31), roce("10.0.1.3", 0, 31)};
  expect_pair(join(a, 0, b, 1), 0, 0);
  expect_pair(join(a, 1, b, 0), 1, 1);
  expect_pair(join(a, 1, {b[0]}, 0), 0, 0);
}

TEST(Ports, AreReadAsTheyWereWritten) {
  auto ports = rails(0, {10, 21, 32});
  auto read = decode_ports(encode_ports(ports));
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[2].distance, 32);
  EXPECT_EQ(read[2].gid, ports[2].gid);
  EXPECT_TRUE(decode_ports("").empty());
  EXPECT_TRUE(decode_ports(encode_ports(ports) + "x").empty());
  ports[1].version++;
  EXPECT_TRUE(decode_ports(encode_ports(ports)).empty());
  EXPECT_TRUE(decode_ports(encode_ports(std::vector<Address>(kMostPorts + 1))).empty());
}

}  // namespace
}  // namespace ringcoll::rdma
