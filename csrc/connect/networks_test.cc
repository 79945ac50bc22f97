#include "connect/networks.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace ringcoll {
namespace {

using Host = std::vector<Offer>;

Offer offer(const char* interface, const std::string& address, int bits = 24, int speed = 0) {
  return {0, interface, Address::parse(address + ":4711"), bits, speed};
}

std::vector<std::string> names(const std::vector<Network>& networks) {
  std::vector<std::string> all;
  for (const Network& network : networks) all.push_back(network.name);
  return all;
}

using Names = std::vector<std::string>;
using Offers = std::vector<int>;

TEST(Networks, OfSeveralAreThoseInWhichAllRanksAre) {
  std::vector<Host> hosts = {
      {offer("eth0", "10.0.0.1"), offer("eth1", "10.0.1.1"), offer("eth2", "10.0.2.1")},
      {offer("eth1", "10.0.1.2"), offer("eth0", "10.0.0.2")}};
  auto networks = joint_networks(hosts);
  EXPECT_EQ(names(networks),
            (Names{"10.0.0.0/24", "10.0.1.0/24", "the first interface of each rank"}));
  EXPECT_EQ(networks[0].offer_of, (Offers{0, 1}));
  EXPECT_EQ(networks[1].offer_of, (Offers{1, 0}));
}

TEST(Networks, NamesMayDiffer) {
  std::vector<Host> hosts = {{offer("enp1s0", "10.0.0.1"), offer("ens7", "10.1.0.1", 16)},
                             {offer("eth0", "10.1.0.2", 16), offer("eth1", "10.0.0.2")}};
  auto networks = joint_networks(hosts);
  ASSERT_GE(networks.size(), 2u);
  EXPECT_EQ(networks[0].name, "10.0.0.0/24");
  EXPECT_EQ(networks[0].offer_of, (Offers{0, 1}));
  EXPECT_EQ(networks[1].name, "10.1.0.0/16");
  EXPECT_EQ(networks[1].offer_of, (Offers{1, 0}));
}

// Each host reaches itself by it, and nobody else.
TEST(Networks, LoopbackJoinsNoTwoStacks) {
  auto alone = [](uint64_t stack, const char* address, const char* name = "lo") {
    Offer one = offer(name, address, 8);
    one.stack = stack;
    one.is_of_stack = std::string_view(name) == "lo";
    return one;
  };
  Offer local{.stack = 1,
              .interface = "local",
              .address = Address::parse("unix:here"),
              .is_of_stack = true};
  std::vector<Host> apart = {{alone(1, "127.0.0.1")}, {alone(2, "127.0.0.1")}};
  EXPECT_TRUE(joint_networks(apart).empty());
  apart[0] = {alone(1, "[::1]"), local};
  EXPECT_TRUE(joint_networks(apart).empty());
  apart[0].push_back(alone(1, "10.0.0.1", "eth0"));
  EXPECT_TRUE(joint_networks(apart).empty());
  apart[1].push_back(alone(2, "10.0.0.2", "eth0"));
  auto networks = joint_networks(apart);
  EXPECT_EQ(names(networks), (Names{"10.0.0.0/8"}));
  EXPECT_EQ(networks[0].offer_of, (Offers{2, 1}));
  // Of one stack it does.
  EXPECT_EQ(
      names(joint_networks(std::vector<Host>{{alone(1, "127.0.0.1")}, {alone(1, "127.0.0.1")}})),
      (Names{"127.0.0.0/8"}));
  EXPECT_EQ(names(joint_networks(std::vector<Host>{{local}, {local}})), (Names{"local"}));
}

// A routed fabric: each host has a network of its own.
TEST(Networks, RoutedOnesGoByNameAndThenByPlace) {
  std::vector<Host> hosts = {{offer("mgmt", "192.168.0.1"), offer("ib0", "10.0.0.0", 31)},
                             {offer("mgmt", "192.168.0.2"), offer("ib0", "10.0.0.2", 31)}};
  EXPECT_EQ(names(joint_networks(hosts)), (Names{"192.168.0.0/24", "ib0"}));
  std::vector<Host> single = {{offer("eth0", "10.0.0.0", 31)}, {offer("ens1", "10.0.0.2", 31)}};
  auto networks = joint_networks(single);
  EXPECT_EQ(names(networks), (Names{"the first interface of each rank"}));
  EXPECT_EQ(networks[0].offer_of, (Offers{0, 0}));
}

TEST(Networks, OfBothFamiliesAreOneWire) {
  std::vector<Host> hosts = {{offer("eth0", "10.0.0.1"), offer("eth0", "[fd00::1]", 64)},
                             {offer("eth0", "10.0.0.2"), offer("eth0", "[fd00::2]", 64)}};
  EXPECT_EQ(names(joint_networks(hosts)), Names{"10.0.0.0/24"});
  hosts[1].erase(hosts[1].begin());
  EXPECT_EQ(joint_networks(hosts)[0].name, "fd00::/64");
}

TEST(Networks, TheFastestAsDriversSayIsTriedFirst) {
  std::vector<Host> hosts = {{offer("a", "10.0.0.1"), offer("b", "10.0.1.1", 24, 1000),
                              offer("c", "10.0.2.1", 24, 100000)},
                             {offer("a", "10.0.0.2", 24, 400000), offer("b", "10.0.1.2", 24, 1000),
                              offer("c", "10.0.2.2", 24, 10000)}};
  EXPECT_EQ(names(joint_networks(hosts)), (Names{"10.0.2.0/24", "10.0.1.0/24", "10.0.0.0/24"}));
}

TEST(Networks, AreTriedByTheLowestRankOfEachStack) {
  std::vector<Host> ranks(5, Host{offer("eth0", "10.0.0.1")});
  for (Rank rank : {1, 2, 4}) ranks[rank][0].stack = 7;
  ranks[3][0].stack = 5;
  EXPECT_EQ(first_of_stacks(ranks), (std::vector<Rank>{0, 1, 3}));
}

TEST(Networks, AreNotWithoutNumber) {
  std::vector<Host> hosts(2);
  for (int i = 0; i < 20; i++)
    for (int host = 0; host < 2; host++)
      hosts[host].push_back(offer(("eth" + std::to_string(i)).c_str(),
                                  "10.0." + std::to_string(i) + "." + std::to_string(host + 1)));
  EXPECT_EQ(joint_networks(hosts).size(), kMostNetworks);
}

TEST(Offers, AreReadAsTheyWereWritten) {
  Host host = {offer("eth0", "10.0.0.1", 24, 1000), offer("ib0", "[fd00::1]", 64)};
  auto read = decode_offers(encode_offers(host));
  EXPECT_EQ(describe_offers(read), "eth0 10.0.0.1/24, ib0 fd00::1/64");
  EXPECT_EQ(read[0].speed_mbps, 1000);
  EXPECT_EQ(read[1].address.text(), "[fd00::1]:4711");
  EXPECT_EQ(read[1].network(), "fd00::/64");
}

TEST(Offers, NonsenseIsRefused) {
  std::string good = encode_offers(Host{offer("eth0", "10.0.0.1")});
  for (size_t length = 0; length < good.size(); length++)
    EXPECT_THROW(decode_offers(good.substr(0, length)), Error) << length;
  EXPECT_THROW(decode_offers(good + "x"), Error);
  EXPECT_THROW(decode_offers(encode_offers({})), Error);
  EXPECT_THROW(decode_offers(encode_offers(Host{offer("eth0", "10.0.0.1", 33)})), Error);
  EXPECT_THROW(decode_offers(encode_offers(Host{offer("eth0", "10.0.0.1", -1)})), Error);
  EXPECT_THROW(decode_offers(encode_offers(Host(65, offer("eth0", "10.0.0.1")))), Error);
}

Trial trial(const std::vector<double>& rates) {
  Trial made;
  for (double rate : rates)
    made.findings.push_back({rate, rate == Trial::kNotReached ? "no answer" : ""});
  return made;
}

std::vector<int> chosen(const std::vector<Trial>& trials, size_t networks) {
  std::vector<int> all;
  for (const NetworkChoice& choice : choose_networks(trials, networks))
    all.push_back(choice.network);
  return all;
}

TEST(NetworkChoice, IsTheFastestAndWhatIsNotMuchSlower) {
  EXPECT_EQ(chosen({trial({2, 118})}, 2), Offers{1});
  EXPECT_EQ(chosen({trial({118, 2, 70})}, 3), (Offers{0, 2}));
  EXPECT_EQ(choose_networks(std::vector{trial({2, 118})}, 2)[0].bytes_per_us, 118);
}

TEST(NetworkChoice, BetweenEqualsTheOrderDecides) {
  EXPECT_EQ(chosen({trial({100, 118})}, 2), (Offers{0, 1}));
  EXPECT_EQ(chosen({trial({80, 118})}, 2), (Offers{1, 0}));
}

TEST(NetworkChoice, TheSlowestPairCounts) {
  EXPECT_EQ(chosen({trial({1000, 118}), {}, trial({3, 118})}, 2), Offers{1});
  // One that only proved reach says nothing of rates.
  EXPECT_EQ(chosen({trial({1000, 118}), trial({0, 0})}, 2), Offers{0});
}

TEST(NetworkChoice, WhatDoesNotReachEverybodyIsNotUsed) {
  EXPECT_EQ(chosen({trial({1000, 2}), trial({Trial::kNotReached, 2})}, 2), Offers{1});
  EXPECT_EQ(chosen({trial({-1, 5}), trial({5, -1})}, 2), Offers{});
}

TEST(NetworkChoice, WithoutATrialIsTheFirst) { EXPECT_EQ(chosen({{}, {}}, 3), Offers{0}); }

TEST(Findings, AreReadAsTheyWereWritten) {
  Trial made = trial({12.5, Trial::kNotReached, 0});
  Trial read = Trial::decode(made.encode(), 3);
  ASSERT_EQ(read.findings.size(), 3u);
  EXPECT_EQ(read.findings[0].bytes_per_us, 12.5);
  EXPECT_EQ(read.findings[1].why, "no answer");
  EXPECT_TRUE(Trial::decode("", 3).findings.empty());
}

TEST(Findings, NonsenseIsRefused) {
  EXPECT_THROW(Trial::decode(trial({1, 2}).encode(), 3), Error);
  EXPECT_THROW(Trial::decode(trial({1, 2}).encode(), 1), Error);
  for (double rate : {-2.0, 1e300, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(Trial::decode(trial({rate}).encode(), 1), Error) << rate;
}

}  // namespace
}  // namespace ringcoll
