#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/clock.h"
#include "base/config.h"
#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/types.h"

namespace ringcoll {
namespace {

Getenv from(std::map<std::string, std::string> values) {
  auto kept = std::make_shared<std::map<std::string, std::string>>(std::move(values));
  return [kept](const char* name) {
    auto it = kept->find(name);
    return it == kept->end() ? nullptr : it->second.c_str();
  };
}

std::string refusal(const char* name, const char* value) {
  try {
    read_config(from({{name, value}}));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Config, KnowsWhatLaunchersSayOfInterfaces) {
  auto told = [](std::map<std::string, std::string> values) {
    LauncherInterface said = read_config(from(std::move(values))).launcher_interface;
    return said.variable + " " + said.names;
  };
  EXPECT_EQ(read_config(from({})).launcher_interface.names, "");
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

TEST(Config, Defaults) {
  Config config = read_config(from({}));
  EXPECT_EQ(config.transport, "auto");
  EXPECT_EQ(config.arena_bytes, 64 << 20);
  EXPECT_EQ(config.timeout_s, 30);
  EXPECT_TRUE(config.huge_pages);
}

TEST(Config, ReadsSuffixesAndWords) {
  Config config = read_config(from({{"RINGCOLL_ARENA_BYTES", "2G"},
                                    {"RINGCOLL_INLINE_BYTES", "512"},
                                    {"RINGCOLL_TRANSPORT", "tcp"},
                                    {"RINGCOLL_TIMEOUT_S", "0.5"}}));
  EXPECT_EQ(config.arena_bytes, int64_t{2} << 30);
  EXPECT_EQ(config.inline_bytes, 512);
  EXPECT_EQ(config.transport, "tcp");
  EXPECT_EQ(config.timeout_s, 0.5);
}

TEST(Config, RefusesABadValueWithItsRange) {
  EXPECT_NE(refusal("RINGCOLL_SLOTS", "65").find("RINGCOLL_SLOTS=\"65\""), std::string::npos);
  EXPECT_NE(refusal("RINGCOLL_SLOTS", "65").find("0 to 64"), std::string::npos);
  EXPECT_NE(refusal("RINGCOLL_TRANSPORT", "ib").find("shm, tcp"), std::string::npos);
  for (const char* bad : {"x", "4x", "", " 4", "99999999999999999999", "9223372036854775807G"}) {
    bool empty_means_default = *bad == 0;
    EXPECT_EQ(refusal("RINGCOLL_ARENA_BYTES", bad).empty(), empty_means_default) << bad;
  }
  EXPECT_FALSE(refusal("RINGCOLL_TIMEOUT_S", "nan").empty());
  EXPECT_FALSE(refusal("RINGCOLL_HUGE_PAGES", "yes").empty());
}

TEST(Config, WarnsOfAnUnknownNameWithTheNearest) {
  std::vector<std::string> names = {"RINGCOLL_SLOT", "RINGCOLL_SLOTS", "RINGCOLL_STORE", "HOME"};
  auto warnings = unknown_knobs(names);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("RINGCOLL_SLOTS"), std::string::npos);
}

TEST(Config, NeverShowsTheSecret) {
  for (const Knob& knob : describe_knobs(from({{"RINGCOLL_SECRET", "hunter2"}})))
    EXPECT_EQ(knob.value.find("hunter2"), std::string::npos) << knob.name;
}

TEST(Error, KeepsCodeAndRankWhenContextIsAdded) {
  Error error = Error(Code::kPeerLost, "gone", 3).within("allreduce #41 (4 MiB)");
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_EQ(error.rank(), 3);
  EXPECT_STREQ(error.what(), "allreduce #41 (4 MiB): gone");
  EXPECT_THROW(check(false, Code::kTimeout, "{}", 1), Error);
}

TEST(Types, NamesAndSizes) {
  EXPECT_STREQ(name_of(RC_BFLOAT16), "bfloat16");
  EXPECT_EQ(size_of(RC_FLOAT64), 8u);
  EXPECT_STREQ(name_of(static_cast<DataType>(99)), "?");
  EXPECT_TRUE(overlap({0, 4}, {3, 1}));
  EXPECT_FALSE(overlap({0, 4}, {4, 1}));
  EXPECT_FALSE(overlap({0, 4}, {2, 0}));
}

TEST(SmallFile, IsReadWhole) {
  auto path = std::filesystem::temp_directory_path() / fmt::format("ringcoll-file-{}", ::getpid());
  const std::string content("a\n\0b", 4);
  std::ofstream(path, std::ios::binary) << content;
  std::string failure;
  EXPECT_EQ(read_small_file(path, 4, &failure), content);
  EXPECT_EQ(read_small_file(path, 3, &failure), std::nullopt);
  EXPECT_EQ(failure, "it has 4 bytes; at most 3 are read");
  std::filesystem::remove(path);
  EXPECT_EQ(read_small_file(path, 4, &failure), std::nullopt);
  EXPECT_EQ(failure, "No such file or directory");
  for (const char* other : {"/tmp", "/dev/zero"}) {
    EXPECT_EQ(read_small_file(other, 4, &failure), std::nullopt);
    EXPECT_EQ(failure, "it is no regular file") << other;
  }
}

TEST(Machine, IsNamedAlikeEachTime) {
  EXPECT_FALSE(host_name().empty());
  EXPECT_FALSE(machine_id().empty());
  EXPECT_EQ(machine_id(), machine_id());
  EXPECT_TRUE(namespace_id("net").starts_with("net:[")) << namespace_id("net");
  EXPECT_EQ(namespace_id("nonesuch"), "");
}

TEST(Deadline, CountsDown) {
  EXPECT_TRUE(Deadline(seconds(-1)).passed());
  EXPECT_EQ(Deadline(seconds(-1)).left_ms(), 0);
  Deadline later(seconds(60));
  EXPECT_FALSE(later.passed());
  EXPECT_GT(later.left_ms(), 50000);
  EXPECT_EQ(later.left_ms(10), 10);
}

}  // namespace
}  // namespace ringcoll
