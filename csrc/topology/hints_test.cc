// Files and SLURM's addresses as the ranks of a job have them.
#include "topology/hints.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "topology/location.h"

namespace ringcoll {
namespace {

namespace fs = std::filesystem;

class FindPlacements : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override {
    fs::remove_all(folder_);
    ::unsetenv("SLURM_TOPOLOGY_ADDR");
    ::unsetenv("SLURM_TOPOLOGY_ADDR_PATTERN");
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  /// The next rank, as what it says arrives at the others.
  void add(const std::string& host, const std::string& file = "") {
    Location location;
    location.machine = location.host_id = location.host_name = host;
    location.hints = Hints::of(file, ranks_.empty());
    ranks_.push_back(Location::decode(location.encode()));
  }
  void add_slurm(const std::string& host, const std::string& address,
                 const std::string& pattern = "switch.switch.node") {
    ::setenv("SLURM_TOPOLOGY_ADDR", address.c_str(), 1);
    ::setenv("SLURM_TOPOLOGY_ADDR_PATTERN", pattern.c_str(), 1);
    add(host);
  }
  /// "s.l s.m from SOURCE", or the error.
  std::string found() const {
    try {
      auto locations = find_placements(ranks_);
      std::string text;
      for (const Location& at : locations)
        text += fmt::format("{} ", fmt::join(at.placement.groups, "."));
      return text + "from " + locations[0].placement_source;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      return error.what();
    }
  }
  void expect(std::initializer_list<std::string> parts) const {
    for (const std::string& part : parts)
      EXPECT_NE(found().find(part), std::string::npos) << part << "\n" << found();
  }

  const fs::path folder_ =
      fs::temp_directory_path() / fmt::format("ringcoll-placements-{}", ::getpid());
  std::vector<Location> ranks_;
};

TEST_F(FindPlacements, ByTheFileOfRank0) {
  std::string file = write("t.json", R"({"h1": "s.l", "h2": "s.m", "h3": "s.m"})");
  add("h1", file);
  add("h2.example.org", file);
  add("h1");                                 // it is not set there,
  add("h2.example.org", "/nowhere/t.json");  // or is not to be read
  EXPECT_EQ(found(), "s.l s.m s.l s.m from RINGCOLL_TOPOLOGY=" + file);
}

TEST_F(FindPlacements, AHostMayHaveTheShortNameAndTheFileTheLong) {
  add("h1", write("t", R"({"h1.example.org": "l", "h10": "m"})"));
  EXPECT_TRUE(found().starts_with("l from"));
}

TEST_F(FindPlacements, AFileIsReadByRank0) {
  add("h1", "/nowhere/t.json");
  add("h2", "/nowhere/t.json");
  expect({"RINGCOLL_TOPOLOGY=/nowhere/t.json", "rank 0 (pid 0 on h1)", "No such file"});
}

TEST_F(FindPlacements, AFileIsNoFolderAndNotHuge) {
  add("h1", folder_.string());
  expect({"cannot be read", folder_.string()});
  ranks_.clear();
  std::string huge = write("huge", "");
  fs::resize_file(huge, kMaxTopologyBytes + 1);
  add("h1", huge);
  expect({"cannot be read", "4194305 bytes"});
}

TEST_F(FindPlacements, FilesThatDifferAreAnError) {
  std::string one = write("1", R"({"h1": "s", "h2": "s"})"), other = write("2", R"({"h1": "s"})");
  add("h1", one);
  add("h2", one);
  add("h2", other);
  expect({one, other, "rank 0", "rank 2"});
}

TEST_F(FindPlacements, AFileThatRank0DoesNotHaveIsAnError) {
  add("h1");
  add("h2", write("1", R"({"h1": "s"})"));
  expect({"is set on rank 1", "not on rank 0"});
}

TEST_F(FindPlacements, AHostThatTheFileDoesNotNameIsAnError) {
  add("h1", write("1", R"({"h1": "s", "h3": "s"})"));
  add("h2");
  expect({folder_.string() + "/1", "host h2", "rank 1", "h1, h3"});
}

TEST_F(FindPlacements, HostsAtDifferentDepthsAreAnError) {
  add("h1", write("1", "{\"h1\": \"s.l\",\n\"h2\": \"s\"}"));
  add("h2");
  expect({"line 2", "host h2 has 1 level", "host h1 (line 1) has 2"});
}

TEST_F(FindPlacements, WhatIsWrongWithAFileIsSaidWithItsName) {
  std::string file = write("1", "{\"h1\": \"s\",\n\"h1\": \"s\"}");
  add("h1", file);
  EXPECT_TRUE(found().starts_with("RINGCOLL_TOPOLOGY=" + file + ": line 2: host \"h1\""))
      << found();
}

TEST_F(FindPlacements, BySlurmsAddresses) {
  add_slurm("h1", "s0.s1.h1");
  add_slurm("h2", "s0.s[2-3].h2");
  EXPECT_EQ(found(), "s0.s1 s0.s[2-3] from SLURM_TOPOLOGY_ADDR");
}

TEST_F(FindPlacements, AFileComesBeforeSlurmsAddresses) {
  add_slurm("h1", "s0.s1.h1");
  ranks_[0].hints = Hints::of(write("1", R"({"h1": "mine"})"), true);
  EXPECT_TRUE(found().starts_with("mine from RINGCOLL_TOPOLOGY"));
}

TEST_F(FindPlacements, AnAddressThatALauncherHandedOnIsNotUsed) {
  add_slurm("h1", "s0.s1.h1");
  add_slurm("h2", "s0.s1.h1");
  expect(
      {" from host names (SLURM_TOPOLOGY_ADDR is not used: s0.s1.h1 is set on several machines"});
  ranks_[1].machine = "h1";  // two containers
  EXPECT_EQ(found(), "s0.s1 s0.s1 from SLURM_TOPOLOGY_ADDR");
}

TEST_F(FindPlacements, AddressesOfSomeHostsAreNotUsed) {
  add_slurm("h1", "s0.s1.h1");
  add_slurm("h2", "", "");
  expect({"not used: host h2 has none"});
  ranks_.pop_back();
  add_slurm("h2", "s1.h2", "switch.node");
  expect({"not used: host h2 has another number of levels than host h1"});
}

TEST_F(FindPlacements, WithoutAnythingByName) {
  add("h1");
  add("h2");
  EXPECT_EQ(found(), "  from host names");
}

// A group's rank 0 may be on a host without the file.
TEST_F(FindPlacements, AGroupKeepsThePlacementsOfItsWorld) {
  add("h1", write("1", R"({"h1": "s", "h2": "t"})"));
  add("h2");
  add("h2");
  auto world = find_placements(ranks_);
  fs::remove_all(folder_);
  ranks_ = {Location::decode(world[2].encode()), Location::decode(world[0].encode())};
  EXPECT_TRUE(found().starts_with("t s from RINGCOLL_TOPOLOGY")) << found();
}

TEST(SlurmPlace, FollowsThePattern) {
  auto groups = [](const char* address, const char* pattern) {
    auto placement = slurm_placement(address, pattern);
    return placement ? fmt::format("{}", fmt::join(placement->groups, "|")) : "none";
  };
  EXPECT_EQ(groups("s0.s4.n7", "switch.switch.node"), "s0|s4");
  EXPECT_EQ(groups("s0.s[1-2].n7.example", "switch.switch.node"), "s0|s[1-2]");
  EXPECT_EQ(groups("s0..n7", "switch.switch.node"), "s0|") << "no switch of that level";
  EXPECT_EQ(groups("b3.n7", "block.node"), "b3");
  EXPECT_EQ(groups("n7", "node"), "none");
  EXPECT_EQ(groups("s0.n7", "switch.switch.node"), "none");
  EXPECT_EQ(groups("s0.n7", "switch.switch"), "none");
  EXPECT_EQ(groups("", ""), "none");
}

}  // namespace
}  // namespace ringcoll
