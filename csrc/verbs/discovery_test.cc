#include "verbs/discovery.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "verbs/fake/fake_testing.h"
#include "verbs/knobs.h"
#include "verbs/report.h"
#include "verbs/selection.h"
#include "verbs/table.h"

namespace ringcoll::verbs {
namespace {

namespace fs = std::filesystem;

/// A tree like the kernel's, removed at the end.
struct SysfsForTest {
  fs::path root = fs::temp_directory_path() / fmt::format("ringcoll-sysfs-{}", ::getpid());

  SysfsForTest() { fs::create_directories(root); }
  ~SysfsForTest() { fs::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    fs::path file = root / "class/infiniband" / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
};

std::string no_sysfs() { return "/nonexistent"; }

Selection choose(const Survey& found, const std::string& devices = "", int gid_index = -1) {
  Config config;
  config.devices = devices;
  config.gid_index = gid_index;
  return select_ports(found, config);
}

FakeDevice named(const std::string& name, std::vector<FakePort> ports = {FakePort{}}) {
  return {.name = name, .ports = std::move(ports)};
}

TEST(Discovery, ReadsDevicesPortsAndGids) {
  FakeVerbs fake;
  Survey found = survey(no_sysfs());
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.fork, ForkSupport::kUnneeded);
  ASSERT_EQ(found.devices.size(), 1u);
  const Device& device = found.devices[0];
  EXPECT_EQ(device.name, "fake0");
  EXPECT_EQ(device.firmware, "fake");
  EXPECT_EQ(device.limits.inline_bytes, 256u);
  EXPECT_EQ(device.limits.slices, 16);
  ASSERT_EQ(device.ports.size(), 1u);
  const Port& port = device.ports[0];
  EXPECT_EQ(port.state, PortState::kActive);
  EXPECT_EQ(port.physical_state, "link up");
  EXPECT_EQ(port.link_layer, LinkLayer::kEthernet);
  EXPECT_EQ(port.active_mtu_bytes, 4096u);
  EXPECT_EQ(port.max_message_bytes, 1u << 30);
  EXPECT_EQ(port.gigabits, 100);
  EXPECT_EQ(port.interface, "lo");
  ASSERT_EQ(port.gids.size(), 4u);
  EXPECT_EQ(port.gids[3].type, GidType::kRoceV2);
  EXPECT_EQ(port.gids[3].gid.text(), "10.0.0.1");
  EXPECT_EQ(fake.objects_left(), 0);
}

TEST(Discovery, ReadsGidsFromSysfsWithAnOlderLibrary) {
  SysfsForTest sysfs;
  for (int i = 0; i < 4; i++) {
    std::string attributes = "fake0/ports/1/gid_attrs/";
    sysfs.write(attributes + "types/" + std::to_string(i), i % 2 ? "RoCE v2" : "IB/RoCE v1");
    sysfs.write(attributes + "ndevs/" + std::to_string(i), "eth7");
  }
  sysfs.write("fake0/device/numa_node", "1");
  FakeVerbs fake({.has_gid_table = false});
  Survey found = survey(sysfs.root);
  const Port& port = found.devices.at(0).ports.at(0);
  ASSERT_EQ(port.gids.size(), 4u);
  EXPECT_EQ(port.gids[0].type, GidType::kRoceV1);
  EXPECT_EQ(port.gids[1].type, GidType::kRoceV2);
  EXPECT_EQ(port.interface, "eth7");
  EXPECT_EQ(found.devices[0].numa_node, 1);
  EXPECT_EQ(choose(found).usable.at(0).gid.index, 3);
}

TEST(Discovery, FindsThePortsInterfaceWithoutAGid) {
  SysfsForTest sysfs;
  sysfs.write("fake0/device/net/eth3/dev_port", "0");
  sysfs.write("fake0/device/net/eth4/dev_port", "1");
  FakePort bare{.gids = {}};
  FakeVerbs fake({.devices = {named("fake0", {bare, bare})}});
  Survey found = survey(sysfs.root);
  EXPECT_EQ(found.devices[0].ports[0].interface, "eth3");
  EXPECT_EQ(found.devices[0].ports[1].interface, "eth4");
  std::string why = choose(found).why_none(found);
  EXPECT_NE(why.find("fake0:1: the GID table is empty: give the interface eth3"), std::string::npos)
      << why;
}

TEST(Discovery, NoDeviceSaysWhatIsMissing) {
  SysfsForTest sysfs;
  FakeVerbs fake({.devices = {}});
  EXPECT_NE(survey(no_sysfs()).problem.find("this host has no RDMA device"), std::string::npos);
  sysfs.write("mlx5_0/node_type", "1: CA");
  std::string text = survey(sysfs.root).problem;
  EXPECT_NE(text.find("the kernel has mlx5_0, but libibverbs shows none"), std::string::npos);
  EXPECT_NE(text.find("/dev/infiniband"), std::string::npos) << text;
  fake.fail(FakeCall::kGetDeviceList, 1, ENOSYS);
  EXPECT_NE(survey(no_sysfs()).problem.find("ib_uverbs"), std::string::npos);
}

TEST(Discovery, NoPermissionIsTheDevicesProblem) {
  FakeVerbs fake({.devices = {named("fake0"), named("fake1")}});
  fake.fail(FakeCall::kOpenDevice, 1, EACCES);
  Survey found = survey(no_sysfs());
  EXPECT_NE(found.devices[0].problem.find("/dev/infiniband/uverbs"), std::string::npos);
  Selection chosen = choose(found);
  ASSERT_EQ(chosen.usable.size(), 1u);
  EXPECT_EQ(chosen.usable[0].device, "fake1");
  ASSERT_EQ(chosen.refused.size(), 1u);
  EXPECT_EQ(chosen.refused[0].name, "fake0");
}

TEST(Discovery, AnIwarpDeviceIsRefused) {
  FakeDevice device = named("iwarp0");
  device.iwarp = true;
  FakeVerbs fake({.devices = {device}});
  Survey found = survey(no_sysfs());
  EXPECT_NE(choose(found).why_none(found).find("iWARP"), std::string::npos);
}

TEST(Selection, ReadsTheKnob) {
  EXPECT_TRUE(parse_devices("").empty());
  std::vector<PortWish> expected = {{"mlx5_0", 1}, {"mlx5_1", 0}};
  EXPECT_EQ(parse_devices("mlx5_0:1,mlx5_1"), expected);
  for (const char* wrong : {",", "mlx5_0:", "mlx5_0:x", "mlx5_0:0", "mlx5_0:999", ":1", "a,,b"})
    EXPECT_THROW(parse_devices(wrong), Error) << wrong;
}

TEST(Selection, APortThatIsDownIsRefusedWithARemedy) {
  FakePort down{.state = PortState::kDown};
  FakeVerbs fake({.devices = {named("fake0", {down, FakePort{}})}});
  Survey found = survey(no_sysfs());
  Selection chosen = choose(found);
  ASSERT_EQ(chosen.usable.size(), 1u);
  EXPECT_EQ(chosen.usable[0].port_id().text(), "fake0:2, gid 3");
  ASSERT_EQ(chosen.refused.size(), 1u);
  EXPECT_EQ(chosen.refused[0].name, "fake0:1");
  EXPECT_NE(chosen.refused[0].why.find("the port is down (polling): bring its interface up"),
            std::string::npos)
      << chosen.refused[0].why;
  // A name alone is its first usable port; a named port is that one or nothing.
  EXPECT_EQ(choose(found, "fake0").usable.at(0).port.number, 2);
  EXPECT_TRUE(choose(found, "fake0:1").usable.empty());
}

TEST(Selection, ObeysTheOrderOfTheWishes) {
  FakeVerbs fake({.devices = {named("fake0"), named("fake1")}});
  Survey found = survey(no_sysfs());
  EXPECT_EQ(choose(found).usable.size(), 2u);
  Selection chosen = choose(found, "fake1:1,fake0");
  ASSERT_EQ(chosen.usable.size(), 2u);
  EXPECT_EQ(chosen.usable[0].device, "fake1");
  chosen = choose(found, "mlx5_0,fake0:3");
  EXPECT_TRUE(chosen.usable.empty());
  std::string why = chosen.why_none(found);
  EXPECT_NE(why.find("there are: fake0, fake1"), std::string::npos) << why;
  EXPECT_NE(why.find("fake0:3: the device has 1 ports"), std::string::npos) << why;
}

TEST(Selection, OfSharedPortsTheFastestOrAllThatAreNamed) {
  auto port = [](const char* device, double gigabits, LinkLayer layer) {
    return UsablePort{.device = device, .port = {.link_layer = layer, .gigabits = gigabits}};
  };
  Selection chosen{
      .usable = {port("a", 200, LinkLayer::kEthernet), port("b", 200, LinkLayer::kInfiniBand),
                 port("c", 200, LinkLayer::kEthernet), port("d", 25, LinkLayer::kEthernet)}};
  auto names = [&] {
    std::string text;
    for (const UsablePort& shared : chosen.shared()) text += shared.device;
    return text;
  };
  EXPECT_EQ(names(), "ac");
  chosen.named = true;
  EXPECT_EQ(names(), "abcd");
  FakeVerbs fake({.devices = {named("fake0"), named("fake1")}});
  EXPECT_FALSE(choose(survey(no_sysfs())).named);
  EXPECT_TRUE(choose(survey(no_sysfs()), "fake1").named);
}

TEST(Selection, AGidIndexOutOfRangeRefusesThePort) {
  FakeVerbs fake;
  Survey found = survey(no_sysfs());
  EXPECT_EQ(choose(found, "", 1).usable.at(0).gid.index, 1);
  Selection chosen = choose(found, "", 40);
  EXPECT_NE(chosen.why_none(found).find("RINGCOLL_GID_INDEX=40"), std::string::npos);
}

TEST(Selection, InfiniBandWithoutALidNeedsASubnetManager) {
  FakePort port{.link_layer = LinkLayer::kInfiniBand, .gids = {{"fe80::1", GidType::kInfiniBand}}};
  FakePort waiting = port;
  waiting.state = PortState::kInit;
  FakePort well = port;
  well.lid = 4;
  FakeVerbs fake({.devices = {named("fake0", {port, waiting, well})}});
  Survey found = survey(no_sysfs());
  Selection chosen = choose(found);
  ASSERT_EQ(chosen.usable.size(), 1u);
  EXPECT_EQ(chosen.usable[0].port.lid, 4);
  ASSERT_EQ(chosen.refused.size(), 2u);
  for (const auto& refused : chosen.refused)
    EXPECT_NE(refused.why.find("opensm"), std::string::npos) << refused.why;
}

TEST(Selection, APortIsReadAgainAfterAnEvent) {
  FakeVerbs fake;
  Context context("fake0");
  fake.set_gids("fake0", 1, {{"2001:db8::7"}});
  Port port = read_port(context, 1, no_sysfs());
  EXPECT_EQ(choose_gid(port, {}).gid.text(), "2001:db8::7");
  EXPECT_NE(read_port(context, 9, no_sysfs()).problem, "");
}

nlohmann::json report(const std::string& devices = "") {
  Config config = KnobTable(knobs()).read([](const char*) -> const char* { return nullptr; });
  config.devices = devices;
  Survey found = survey(no_sysfs());
  return nlohmann::json::parse(report_json(found, select_ports(found, config), config));
}

bool says(const nlohmann::json& row, const char* part) {
  return row["verdict"].get<std::string>().find(part) != std::string::npos;
}

TEST(Report, ShowsWhatIsUsedAndWhyNot) {
  FakePort other{
      .link_layer = LinkLayer::kInfiniBand, .lid = 4, .gids = {{"fe80::1", GidType::kInfiniBand}}};
  FakeVerbs fake({.devices = {named("fake0", {FakePort{}, FakePort{.state = PortState::kDown}}),
                              named("fake1"), named("fake2", {other})}});
  auto json = report();
  EXPECT_EQ(json["queue_pairs"]["retries"], 6);
  EXPECT_NEAR(json["queue_pairs"]["gives_up_after_s"], 3.76, 0.01);
  auto ports = json["devices"][0]["ports"];
  EXPECT_EQ(ports[0]["name"], "fake0:1");
  EXPECT_TRUE(ports[0]["chosen"]);
  EXPECT_TRUE(says(ports[0], "gid 3"));
  ASSERT_EQ(ports[0]["gids"].size(), 4u);
  EXPECT_TRUE(ports[0]["gids"][3]["chosen"]);
  EXPECT_TRUE(says(ports[0]["gids"][3], "RoCE v2 over IPv4"));
  EXPECT_FALSE(ports[0]["gids"][2]["chosen"]);
  EXPECT_TRUE(says(ports[0]["gids"][2], "only RoCE v2 is used"));
  EXPECT_FALSE(ports[1]["chosen"]);
  EXPECT_TRUE(says(ports[1], "the port is down"));
  auto second = json["devices"][1]["ports"][0];
  EXPECT_TRUE(second["chosen"]);
  EXPECT_TRUE(says(second, "share it and fake0:1"));
  auto third = json["devices"][2]["ports"][0];
  EXPECT_FALSE(third["chosen"]);
  EXPECT_TRUE(says(third, "fake0:1, gid 3 comes first"));
}

TEST(Report, ShowsWhatTheKnobDoesNotName) {
  FakeVerbs fake({.devices = {named("fake0"), named("fake1")}});
  auto json = report("fake1,fake7");
  EXPECT_TRUE(says(json["devices"][0]["ports"][0], "RINGCOLL_DEVICES names others"));
  EXPECT_TRUE(json["devices"][1]["ports"][0]["chosen"]);
  ASSERT_EQ(json["refused"].size(), 1u);
  EXPECT_EQ(json["refused"][0]["name"], "fake7");
}

TEST(Report, SaysWhyThereIsNothing) {
  FakeVerbs fake({.devices = {}});
  EXPECT_EQ(report()["problem"].get<std::string>().find("this host has no RDMA device"), 0u);
}

}  // namespace
}  // namespace ringcoll::verbs
