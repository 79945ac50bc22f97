// The machinery of the table, on the rows of the library's layers. transport/knobs_test.cc has what
// holds of every row.
#include "base/knobs.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/knobs_testing.h"

namespace ringcoll {
namespace {

using testing::environment_of;

KnobTable core() { return KnobTable(core_knobs()); }

std::string refusal(const char* name, const char* value) {
  try {
    core().read(environment_of({{name, value}}));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Knobs, KnowsWhatLaunchersSayOfInterfaces) {
  auto told = [](std::map<std::string, std::string> values) {
    LauncherInterface said = core().read(environment_of(std::move(values))).launcher_interface;
    return said.variable + " " + said.names;
  };
  EXPECT_EQ(core().read(environment_of({})).launcher_interface.names, "");
  EXPECT_EQ(told({{"GLOO_SOCKET_IFNAME", "ib0"}}), "GLOO_SOCKET_IFNAME =ib0");
  EXPECT_EQ(told({{"NCCL_SOCKET_IFNAME", "^docker,lo"}}), "NCCL_SOCKET_IFNAME ^docker,lo");
  EXPECT_EQ(told({{"HOROVOD_GLOO_IFACE", "eth1"}, {"GLOO_SOCKET_IFNAME", "ib0"}}),
            "HOROVOD_GLOO_IFACE =eth1");
  // As horovodrun does for --network-interfaces eth0,eth1.
  EXPECT_EQ(told({{"HOROVOD_GLOO_IFACE", "eth1"}, {"NCCL_SOCKET_IFNAME", "eth0,eth1"}}),
            "NCCL_SOCKET_IFNAME =eth0,eth1");
  EXPECT_EQ(told({{"HOROVOD_GLOO_IFACE", "eth1"}, {"NCCL_SOCKET_IFNAME", "eth10"}}),
            "HOROVOD_GLOO_IFACE =eth1");
}

TEST(Knobs, Defaults) {
  Config config = core().read(environment_of({}));
  EXPECT_EQ(config.log, "info");
  EXPECT_EQ(config.arena_bytes, 64 << 20);
  EXPECT_EQ(config.timeout_s, 300);
}

TEST(Knobs, ReadsSuffixesAndWords) {
  Config config = core().read(environment_of({{"RINGCOLL_ARENA_BYTES", "2G"},
                                              {"RINGCOLL_INLINE_BYTES", "512"},
                                              {"RINGCOLL_LOG", "debug"},
                                              {"RINGCOLL_TIMEOUT_S", "0.5"}}));
  EXPECT_EQ(config.arena_bytes, int64_t{2} << 30);
  EXPECT_EQ(config.inline_bytes, 512);
  EXPECT_EQ(config.log, "debug");
  EXPECT_EQ(config.timeout_s, 0.5);
}

TEST(Knobs, RefusesABadValueWithItsRange) {
  EXPECT_NE(refusal("RINGCOLL_SLOTS", "65").find("RINGCOLL_SLOTS=\"65\""), std::string::npos);
  EXPECT_NE(refusal("RINGCOLL_SLOTS", "65").find("0 to 64"), std::string::npos);
  EXPECT_NE(refusal("RINGCOLL_LOG", "loud").find("error, warning"), std::string::npos);
  for (const char* bad : {"x", "4x", "", " 4", "99999999999999999999", "9223372036854775807G",
                          "-9223372036854775808K"}) {
    bool empty_means_default = *bad == 0;
    EXPECT_EQ(refusal("RINGCOLL_ARENA_BYTES", bad).empty(), empty_means_default) << bad;
  }
  EXPECT_FALSE(refusal("RINGCOLL_TIMEOUT_S", "nan").empty());
}

TEST(Knobs, WarnsOfAnUnknownNameWithTheNearest) {
  std::vector<std::string> names = {
      "RINGCOLL_SLOT", "RINGCOLL_SLOTS", "RINGCOLL_STORE",          "RINGCOLL_LIBRARY",
      "RINGCOLL_KEY",  "RINGCOLL_MXNET", "RINGCOLL_MXNET_REPLICAS", "HOME"};
  auto warnings = core().unknown(names);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("RINGCOLL_SLOTS"), std::string::npos);
}

TEST(Knobs, NeverShowsTheSecret) {
  for (const Knob& knob : core().describe(environment_of({{"RINGCOLL_SECRET", "hunter2"}})))
    EXPECT_EQ(knob.value.find("hunter2"), std::string::npos) << knob.name;
}

TEST(Knobs, SayTheirOwnerAndWhetherRanksAgree) {
  std::map<std::string, std::string> said;
  for (const Knob& knob : core().describe(environment_of({})))
    said[knob.name] = knob.owner + ": " + knob.agreement;
  EXPECT_EQ(said["RINGCOLL_SLOTS"], "coll: agreed");
  EXPECT_EQ(said["RINGCOLL_COSTS"], "mesh: rank 0's");
  EXPECT_EQ(said["RINGCOLL_LOG"], "engine: own");
}

TEST(Knobs, HaveOneTextForEqualValues) {
  auto arena = [](const char* text) {
    Config config = core().read(environment_of({{"RINGCOLL_ARENA_BYTES", text}}));
    for (const KnobRow& row : core_knobs())
      if (row.name == std::string("RINGCOLL_ARENA_BYTES")) return value_of(row, config);
    return std::string();
  };
  for (const char* text : {"2G", "2GiB", "2048M", "2147483648"}) EXPECT_EQ(arena(text), "2G");
  EXPECT_EQ(arena("1536M"), "1536M");
  EXPECT_EQ(arena("1048577"), "1048577");
}

}  // namespace
}  // namespace ringcoll
