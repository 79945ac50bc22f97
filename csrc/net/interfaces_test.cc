#include "net/interfaces.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

Interface make(const char* name, const char* address, bool up = true, bool loopback = false) {
  return {name, Address::parse(address), up, loopback, 24, 0};
}

const std::vector<Interface> kHost = {make("lo", "127.0.0.1:0", true, true),
                                      make("docker0", "172.17.0.1:0"),
                                      make("eth0", "10.0.0.5:0", false),
                                      make("eth1", "10.0.1.5:0"),
                                      make("eth10", "10.0.10.5:0"),
                                      make("ib0", "10.1.2.5:0"),
                                      make("ib0", "[fd00::5]:0")};

std::string chosen(const std::string& wanted, std::span<const Interface> all = kHost) {
  std::vector<std::string> names;
  for (const Interface& interface : select_interfaces(wanted, "RINGCOLL_INTERFACE", all))
    names.push_back(interface.name + " " + interface.address.host());
  return fmt::format("{}", fmt::join(names, ", "));
}

TEST(Interfaces, ThisHostHasLoopback) {
  auto all = list_interfaces();
  auto loopback = std::ranges::find_if(all, [](const Interface& i) { return i.loopback; });
  ASSERT_NE(loopback, all.end());
  EXPECT_EQ(loopback->prefix_bits, loopback->address.family() == AF_INET ? 8 : 128);
  EXPECT_EQ(loopback->speed_mbps, 0);  // it says nothing of its speed
  auto named = select_interfaces("=" + loopback->name, "test", all);
  EXPECT_EQ(named.at(0).address.text(), loopback->address.text());
  EXPECT_TRUE(listen_on(select_interfaces("", "test", all).at(0).address));
}

TEST(Interfaces, AllRealOnesUnlessNamed) {
  EXPECT_EQ(chosen(""), "eth1 10.0.1.5, eth10 10.0.10.5, ib0 10.1.2.5, ib0 fd00::5");
  EXPECT_EQ(chosen("", std::span(kHost).first(3)), "lo 127.0.0.1");
}

TEST(Interfaces, AreNamedByListPrefixOrNetwork) {
  EXPECT_EQ(chosen("eth"), "eth1 10.0.1.5, eth10 10.0.10.5");
  EXPECT_EQ(chosen("eth1"), "eth1 10.0.1.5, eth10 10.0.10.5");
  EXPECT_EQ(chosen("=eth1"), "eth1 10.0.1.5");
  EXPECT_EQ(chosen("=eth10,docker0"), "docker0 172.17.0.1, eth10 10.0.10.5");
  EXPECT_EQ(chosen("ib,lo"), "lo 127.0.0.1, ib0 10.1.2.5, ib0 fd00::5");
  EXPECT_EQ(chosen("10.1.0.0/16"), "ib0 10.1.2.5");
  EXPECT_EQ(chosen("10.0.0.0/15"), "eth1 10.0.1.5, eth10 10.0.10.5, ib0 10.1.2.5");
  EXPECT_EQ(chosen("fd00::/64"), "ib0 fd00::5");
  EXPECT_EQ(chosen("10.1.2.5/32,lo"), "lo 127.0.0.1, ib0 10.1.2.5");
  // One that is down, where there is no other.
  EXPECT_EQ(chosen("eth0"), "eth0 10.0.0.5");
}

TEST(Interfaces, AreExcluded) {
  EXPECT_EQ(chosen("^docker,ib"), "eth1 10.0.1.5, eth10 10.0.10.5");
  EXPECT_EQ(chosen("^=eth1,docker0,ib0"), "eth10 10.0.10.5");
  EXPECT_EQ(chosen("^10.0.0.0/8,docker"), "ib0 fd00::5");
  EXPECT_EQ(chosen("^eth,ib,docker"), "lo 127.0.0.1");
}

TEST(Interfaces, NamesThoseThereAre) {
  for (const char* wanted : {"ib9", "=eth", "^eth,ib,docker,lo", "10.9.0.0/16", "10.0.0.0/33",
                             "10.0.0/24", "fd00::/129", ","}) {
    try {
      chosen(wanted);
      ADD_FAILURE() << wanted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      for (const std::string& part :
           {std::string("RINGCOLL_INTERFACE=") + wanted, std::string("lo (127.0.0.1)"),
            std::string("eth0 (10.0.0.5, down)")})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(select_interfaces("", "test", {}), Error);
}

TEST(Interfaces, NetworksAreWritten) {
  EXPECT_EQ(network_of(Address::parse("10.1.2.5:0"), 24), "10.1.2.0/24");
  EXPECT_EQ(network_of(Address::parse("10.1.2.5:0"), 31), "10.1.2.4/31");
  EXPECT_EQ(network_of(Address::parse("[fd00::5]:1"), 64), "fd00::/64");
}

TEST(Interfaces, ShareANetworkOrDoNot) {
  auto share = [](const char* a, const char* b, int bits) {
    bool found = share_network(Address::parse(a), Address::parse(b), bits);
    EXPECT_EQ(found, network_of(Address::parse(a), bits) == network_of(Address::parse(b), bits));
    return found;
  };
  for (int bits = 0; bits <= 32; bits++)
    EXPECT_EQ(share("10.1.2.5:1", "10.1.2.6:2", bits), bits <= 30) << bits;
  EXPECT_TRUE(share("[fd00::5]:1", "[fd00::6]:1", 126));
  EXPECT_FALSE(share("[fd00::5]:1", "[fd00::6]:1", 127));
  EXPECT_TRUE(share("[fd00::5]:1", "[fd00::5]:2", 128));
  EXPECT_FALSE(share("[fd00::5]:1", "10.1.2.5:1", 32));
}

}  // namespace
}  // namespace ringcoll
