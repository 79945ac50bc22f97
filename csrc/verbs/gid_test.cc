#include "verbs/gid.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

namespace ringcoll::verbs {
namespace {

Gid gid(const std::string& address) {
  Gid made;
  bool ipv4 = address.find(':') == std::string::npos;
  EXPECT_EQ(
      ::inet_pton(AF_INET6, (ipv4 ? "::ffff:" + address : address).c_str(), made.bytes.data()), 1);
  return made;
}

GidEntry v1(int index, const char* address, const char* interface = "eth0") {
  return {index, gid(address), GidType::kRoceV1, interface};
}
GidEntry v2(int index, const char* address, const char* interface = "eth0") {
  return {index, gid(address), GidType::kRoceV2, interface};
}
GidEntry ib(int index, const char* address) {
  return {index, gid(address), GidType::kInfiniBand, ""};
}

struct Case {
  const char* name;
  std::vector<GidEntry> gids;
  GidWish wish;
  int chosen;
  const char* reason;  // part of it
};

const std::vector<Case> kRoce = {
    {"IPv4Alone", {v2(0, "10.0.0.1")}, {}, 0, "over IPv4, of eth0"},
    {"IPv4BeforeLinkLocal", {v2(0, "fe80::1"), v2(1, "10.0.0.1")}, {}, 1, "over IPv4"},
    {"IPv4BeforeIPv6", {v2(0, "2001:db8::1"), v2(1, "10.0.0.1")}, {}, 1, "over IPv4"},
    {"MixedVersions",
     {v1(0, "fe80::1"), v2(1, "fe80::1"), v1(2, "10.0.0.1"), v2(3, "10.0.0.1")},
     {},
     3,
     "over IPv4"},
    {"IPv6Only", {v2(0, "fe80::1"), v2(1, "2001:db8::1")}, {}, 1, "over IPv6"},
    {"UniqueLocal", {v2(0, "fe80::1"), v2(1, "fd00::1")}, {}, 1, "over IPv6"},
    {"LinkLocalOnly", {v1(0, "fe80::1"), v2(1, "fe80::1")}, {}, 1, "link-local"},
    {"FirstOfEquals", {v2(4, "10.0.0.1"), v2(5, "10.0.1.1")}, {}, 4, "over IPv4"},
    {"OtherInterface",
     {v2(0, "fe80::1"), v2(1, "192.168.7.1", "eth0.7"), v2(2, "10.0.0.1")},
     {},
     2,
     "of eth0"},
    {"OnlyOtherInterface", {v2(1, "192.168.7.1", "eth0.7")}, {}, -1, "RINGCOLL_GID_INDEX"},
    {"NamedInterface",
     {v2(0, "10.0.0.1"), v2(1, "192.168.7.1", "eth0.7")},
     {.interface = "eth0.7"},
     1,
     "of eth0.7"},
    {"HiddenInterface", {v2(0, "10.9.0.1", ""), v2(1, "fe80::1")}, {}, 1, "link-local"},
    {"OnlyHiddenInterface", {v2(0, "10.9.0.1", "")}, {}, 0, "unknown interface"},
    {"PeersByIPv6",
     {v2(0, "10.0.0.1"), v2(1, "2001:db8::1")},
     {.family = AddressFamily::kIpv6},
     1,
     "over IPv6"},
    {"PeersByIPv4", {v2(0, "2001:db8::1")}, {.family = AddressFamily::kIpv4}, -1, "address"},
    {"OnlyVersion1", {v1(0, "fe80::1"), v1(1, "10.0.0.1")}, {}, -1, "none of the port's GIDs"},
    {"Empty", {}, {}, -1, "the GID table is empty"},
    {"Override", {v2(0, "10.0.0.1"), v2(1, "fe80::1")}, {.index = 1}, 1, "named"},
    {"OverrideMayBeVersion1", {v1(0, "10.0.0.1"), v2(1, "10.0.0.1")}, {.index = 0}, 0, "named"},
    {"OverrideOutOfRange", {v2(0, "10.0.0.1")}, {.index = 9}, -1, "there are: 0 (10.0.0.1)"},
};

class Roce : public testing::TestWithParam<Case> {};

TEST_P(Roce, Chooses) {
  const Case& c = GetParam();
  Port port{.number = 1, .link_layer = LinkLayer::kEthernet, .interface = "eth0", .gids = c.gids};
  GidChoice choice = choose_gid(port, c.wish);
  EXPECT_EQ(choice.index, c.chosen);
  EXPECT_NE(choice.reason.find(c.reason), std::string::npos) << choice.reason;
  if (c.chosen < 0) return;
  // Every other one has its reason.
  ASSERT_EQ(choice.rejected.size() + 1, c.gids.size());
  for (const auto& rejected : choice.rejected) {
    EXPECT_NE(rejected.index, choice.index);
    EXPECT_FALSE(rejected.why.empty());
  }
}
INSTANTIATE_TEST_SUITE_P(Gids, Roce, testing::ValuesIn(kRoce),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Gid, SaysWhyEachOtherIsRejected) {
  Port port{.link_layer = LinkLayer::kEthernet, .interface = "eth0"};
  port.gids = {v1(0, "10.0.0.1"), v2(1, "fe80::1"), v2(2, "10.1.0.1", "eth0.7"), v2(3, "10.0.0.1")};
  GidChoice choice = choose_gid(port, {});
  ASSERT_EQ(choice.index, 3);
  ASSERT_EQ(choice.rejected.size(), 3u);
  EXPECT_EQ(choice.rejected[0].why, "RoCE v1: only RoCE v2 is used");
  EXPECT_NE(choice.rejected[1].why.find("link-local"), std::string::npos);
  EXPECT_EQ(choice.rejected[2].why, "belongs to eth0.7, not to eth0");
}

TEST(Gid, InfiniBandUsesTheFirstAndRoutesByLid) {
  Port port{.link_layer = LinkLayer::kInfiniBand, .lid = 7};
  port.gids = {ib(0, "fe80::2:c903:1"), ib(1, "fec0::1")};
  GidChoice choice = choose_gid(port, {});
  EXPECT_EQ(choice.index, 0);
  EXPECT_FALSE(needs_global_route(port, choice.gid, gid("fe80::2:c903:9")));
  EXPECT_TRUE(needs_global_route(port, choice.gid, gid("fec0:0:0:1::9")));
  port.global_route_required = true;
  EXPECT_TRUE(needs_global_route(port, choice.gid, choice.gid));
  port.gids.clear();
  EXPECT_NE(choose_gid(port, {}).reason.find("opensm"), std::string::npos);
}

TEST(Gid, RoceAlwaysNeedsAGlobalRoute) {
  Port port{.link_layer = LinkLayer::kEthernet};
  EXPECT_TRUE(needs_global_route(port, gid("10.0.0.1"), gid("10.0.0.2")));
}

TEST(Gid, KnowsItsKindAndText) {
  EXPECT_TRUE(gid("10.0.0.1").is_ipv4());
  EXPECT_EQ(gid("10.0.0.1").text(), "10.0.0.1");
  EXPECT_EQ(gid("2001:db8::1").text(), "2001:db8::1");
  EXPECT_FALSE(gid("2001:db8::1").is_ipv4());
  EXPECT_TRUE(gid("fe80::1").is_link_local());
  EXPECT_FALSE(gid("fec0::1").is_link_local());
  EXPECT_TRUE(Gid{}.empty());
  EXPECT_EQ(gid("fe80::1").subnet_prefix(), 0xfe80000000000000u);
}

}  // namespace
}  // namespace ringcoll::verbs
