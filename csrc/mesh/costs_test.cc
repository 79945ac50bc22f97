// The costs of links that a file gives, and those that are measured when a job starts.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "mesh/group/group.h"
#include "mesh/ranks_testing.h"

namespace ringcoll {
namespace {

std::vector<std::string> errors_or_costs(const std::vector<Config>& configs) {
  std::vector<std::string> said(configs.size());
  auto errors = testing::run_ranks(configs, [&](Mesh& mesh) {
    said[mesh.rank()] = mesh.costs().source + " " + costs_json(mesh.costs().levels);
    EXPECT_EQ(mesh.whole().channels().blocked_waits(), 0u) << "counters are of calls";
  });
  for (size_t rank = 0; rank < said.size(); rank++) said[rank] += errors[rank];
  return said;
}

class GivenCosts : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  static Config config(const std::string& costs) {
    Config config = testing::config_of("loopback");
    config.costs = costs;
    return config;
  }
  static std::string level(const std::string& name, int rate) {
    return fmt::format(
        R"({{"levels": {{"{}": {{"latency_us": 5, "rank_bytes_per_us": {}, "group_bytes_per_us": 9}}}}}})",
        name, rate);
  }
  static void expect_all(const std::vector<std::string>& said, const std::string& part) {
    for (const std::string& text : said) {
      EXPECT_EQ(text, said[0]);
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("ringcoll-costs-{}", ::getpid());
};

TEST_F(GivenCosts, AreMeasuredAndAgreedWithoutAFile) {
  expect_all(errors_or_costs({config(""), config(""), config("")}), "measured");
}

TEST_F(GivenCosts, OfRankZeroAreEverybodys) {
  std::string costs = file("costs", level("host", 7));
  auto said = errors_or_costs({config(costs), config(""), config(costs)});
  expect_all(said, "RINGCOLL_COSTS=" + costs + " {");
  expect_all(said, R"("rank_bytes_per_us":7)");
}

// The network's are known, the host's are not.
TEST_F(GivenCosts, LeaveTheOtherLevelsToMeasuring) {
  expect_all(errors_or_costs({config(file("costs", level("network", 7))), config("")}), "measured");
}

TEST_F(GivenCosts, ThatDifferAreTheSameErrorEverywhere) {
  std::string one = file("one", level("host", 7)), two = file("two", level("host", 8));
  auto said = errors_or_costs({config(one), config(one), config(two)});
  expect_all(said, "rank 2 has " + two);
  expect_all(said, one);
  expect_all(errors_or_costs({config(""), config(two)}), "rank 0 has none");
}

TEST_F(GivenCosts, ThatCannotBeReadAreTheSameErrorEverywhere) {
  expect_all(errors_or_costs({config(""), config("/nowhere/costs")}),
             "rank 1 cannot start: RINGCOLL_COSTS=");
  std::string bad = file("bad", level("host", -1));
  expect_all(errors_or_costs({config(bad), config("")}), "rank_bytes_per_us is -1");
  std::string leaf = file("leaf", level("leaf", 1));
  expect_all(errors_or_costs({config(leaf), config(leaf)}), "levels.leaf: this job has no such");
}

}  // namespace
}  // namespace ringcoll
