#include "net/interfaces.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

Interface make(const char* name, const char* address, bool up = true, bool loopback = false) {
  return {name, Address::parse(address), up, loopback};
}

TEST(Interfaces, ThisHostHasLoopback) {
  auto all = list_interfaces();
  auto loopback = std::ranges::find_if(all, [](const Interface& i) { return i.loopback; });
  ASSERT_NE(loopback, all.end());
  EXPECT_EQ(choose_interface(loopback->name, all).address.text(), loopback->address.text());
  EXPECT_TRUE(listen_on(choose_interface("", all).address));
}

TEST(Interfaces, ChoosesTheFirstRealOne) {
  std::vector<Interface> all = {make("lo", "127.0.0.1:0", true, true),
                                make("docker0", "172.17.0.1:0"), make("eth0", "10.0.0.5:0", false),
                                make("eth1", "10.0.1.5:0"), make("eth2", "10.0.2.5:0")};
  EXPECT_EQ(choose_interface("", all).name, "eth1");
  EXPECT_EQ(choose_interface("docker0", all).name, "docker0");
  all.resize(3);
  EXPECT_EQ(choose_interface("", all).name, "lo");
}

TEST(Interfaces, NamesThoseThereAre) {
  std::vector<Interface> all = {make("lo", "127.0.0.1:0", true, true),
                                make("eth0", "10.0.0.5:0", false)};
  try {
    choose_interface("ib0", all);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    for (const char* part : {"ib0", "lo (127.0.0.1)", "eth0 (10.0.0.5, down)"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_THROW(choose_interface("", {}), Error);
}

}  // namespace
}  // namespace ringcoll
