#include "topology/costs.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "topology/hosts_testing.h"

namespace ringcoll {
namespace {

using testing::on_hosts;

std::vector<std::vector<LevelSamples>> nothing_measured(const Topology& topology) {
  return {static_cast<size_t>(topology.size()), std::vector<LevelSamples>(topology.levels())};
}

/// All ranks measured the same at all levels.
std::vector<std::vector<LevelSamples>> alike(const Topology& topology, LinkSample sample) {
  auto samples = nothing_measured(topology);
  for (auto& levels : samples)
    for (LevelSamples& rounds : levels) rounds.fill(sample);
  return samples;
}

Costs agreed(const Topology& topology, const std::vector<std::vector<LevelSamples>>& samples) {
  return agree_on_costs(topology, samples, {}, "");
}

std::string error_of(std::string_view text) {
  try {
    parse_costs(text, "RINGCOLL_COSTS=/etc/c.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(CostsFile, IsReadAsItIsWritten) {
  std::vector<LevelCost> levels = {{"host", 0.3, 8000, 16000.5}, {"network", 31, 117.25, 1e-3}};
  EXPECT_EQ(parse_costs(costs_json(levels), "x"), levels);
  EXPECT_EQ(parse_costs(R"({"source": "measured", "measuring_ms": 3, "levels": {}})", "x").size(),
            0u);
}

TEST(CostsFile, SaysWhatIsWrong) {
  const char* good = R"("rank_bytes_per_us": 1, "group_bytes_per_us": 2)";
  struct {
    std::string text, wanted;
  } cases[] = {
      {"", "not JSON"},
      {"{\"levels\": ", "not JSON"},
      {std::string("\xff\xfe{\0", 4), "not JSON"},
      {"[]", "\"levels\""},
      {R"({"levels": 3})", "\"levels\""},
      {R"({"levels": {}, "levles": {}})", "\"levles\" is not known"},
      {R"({"levels": {"host": 3}})", "levels.host is no object"},
      {R"({"levels": {"host": {"latency_us": 1}}})", "levels.host.rank_bytes_per_us is missing"},
      {R"({"levels": {"host": {"latency": 1}}})", "levels.host.latency is not known"},
      {fmt::format(R"({{"levels": {{"network": {{"latency_us": 0, {}}}}}}})", good),
       "levels.network.latency_us is 0"},
      {fmt::format(R"({{"levels": {{"network": {{"latency_us": -2.5, {}}}}}}})", good),
       "levels.network.latency_us is -2.5"},
      {fmt::format(R"({{"levels": {{"network": {{"latency_us": "7", {}}}}}}})", good),
       "levels.network.latency_us is \"7\""},
      {fmt::format(R"({{"levels": {{"network": {{"latency_us": {}{}, {}}}}}}})",
                   std::string(1 << 18, '['), std::string(1 << 18, ']'), good),
       "nested more than 4 deep"},
      {fmt::format(R"({{"levels": {{"network": {{"latency_us": null, {}}}}}}})", good),
       "levels.network.latency_us is null"},
      {fmt::format(R"({{"levels": {{"network": {{"latency_us": NaN, {}}}}}}})", good), "not JSON"},
      {fmt::format(R"({{"levels": {{"network": {{"latency_us": 1e999, {}}}}}}})", good),
       "RINGCOLL_COSTS=/etc/c.json"},
  };
  for (const auto& c : cases) {
    std::string error = error_of(c.text);
    EXPECT_NE(error.find(c.wanted), std::string::npos) << c.text.substr(0, 100) << ": " << error;
    EXPECT_NE(error.find("RINGCOLL_COSTS=/etc/c.json"), std::string::npos) << error;
  }
}

TEST(CostsFile, ThatCannotBeReadIsNamed) {
  EXPECT_TRUE(read_costs("").empty());
  for (const char* path : {"/nowhere/costs.json", "/tmp"}) {
    try {
      read_costs(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

// A pipe has no end before somebody writes to it, a device may have none at all.
TEST(CostsFile, ThatIsNoFileIsNotOpened) {
  auto pipe = std::filesystem::temp_directory_path() / fmt::format("ringcoll-pipe-{}", ::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe.string(), std::string("/dev/zero")}) {
    try {
      read_costs(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   fmt::format("RINGCOLL_COSTS={}: it is no regular file", path).c_str());
    }
  }
  std::filesystem::remove(pipe);
}

TEST(CostsFile, IsDescribedInTwoDigits) {
  std::vector<LevelCost> levels = {{"host", 0.314, 8123, 1}, {"network", 99.7, 12e3, 1}};
  EXPECT_EQ(describe(levels), "host 0.31 us 8.1 GB/s, network 100 us 12 GB/s");
  levels = {{"network", 1234.4, 117.3, 1}};
  EXPECT_EQ(describe(levels), "network 1234 us 0.12 GB/s");
}

TEST(Pairs, InsideAHostAreNeighbours) {
  Topology topology = on_hosts({"a", "a", "b", "a", "b", "a", "a"});
  auto sections = sections_of(topology, 0);
  ASSERT_EQ(sections.size(), 2u);
  EXPECT_EQ(sections[0].ranks, (std::vector<Rank>{0, 1, 3, 5, 6}));
  EXPECT_EQ(sections[1].ranks, (std::vector<Rank>{2, 4}));
  EXPECT_EQ(pairs_of(sections[0], 0).size(), 2u);  // the fifth has nobody
}

// Every host measures, also the last of an odd number.
TEST(Pairs, BetweenHostsReachEveryHost) {
  for (int hosts = 2; hosts <= 9; hosts++) {
    std::vector<std::string> names;
    for (int i = 0; i < 3 * hosts; i++) names.push_back(std::to_string(i % hosts));
    auto sections = sections_of(on_hosts(names), 1);
    ASSERT_EQ(sections.size(), 1u);
    ASSERT_EQ(sections[0].cells(), static_cast<size_t>(hosts));
    std::vector<std::vector<int>> rounds(hosts);
    for (const CellPair& pair : pairs_of(sections[0], 1))
      for (size_t cell : {pair.a, pair.b}) rounds[cell].push_back(pair.round);
    for (const auto& taken : rounds) {
      EXPECT_FALSE(taken.empty()) << hosts;
      EXPECT_TRUE(taken.size() == 1 || taken == (std::vector<int>{0, 1})) << "one at a time";
    }
  }
}

TEST(Agreement, SumsLanesAndTakesTheMiddleOfTheRest) {
  Topology topology = on_hosts({"a", "a", "a", "b", "b", "b"});
  auto samples = alike(topology, {2, 100, 40});
  Costs costs = agreed(topology, samples);
  EXPECT_EQ(costs.source, "measured");
  ASSERT_EQ(costs.levels.size(), 2u);
  EXPECT_EQ(costs.levels[0], (LevelCost{"host", 2, 100, 120}));
  EXPECT_EQ(costs.levels[1], (LevelCost{"network", 2, 100, 120}));
}

// Of the lanes of unequal hosts only those that have a partner are there.
TEST(Agreement, KnowsLanesWithoutAPartner) {
  Topology topology = on_hosts({"a", "a", "a", "b"});
  auto samples = nothing_measured(topology);
  for (Rank rank : {0, 3}) samples[rank][1][0] = {30, 110, 110};
  Costs costs = agreed(topology, samples);
  EXPECT_EQ(costs.levels[1], (LevelCost{"network", 30, 110, 110}));
  EXPECT_EQ(costs.levels[0], default_cost("host", true, false));
  EXPECT_EQ(costs.source, "defaults (host), measured (network)");
}

// Whatever fewer than half of the pairs say.
TEST(Agreement, IsNotDecidedByNonsense) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<std::string> hosts;
  for (int i = 0; i < 20; i++) hosts.push_back(std::to_string(i / 2));
  Topology topology = on_hosts(hosts);
  const Costs right = agreed(topology, alike(topology, {30, 110, 60}));
  for (double nonsense : {0.0, -1.0, std::nan(""), kInfinity, -kInfinity, 1e300, 1e-300, 1e6})
    for (Rank liar = 0; liar < topology.size(); liar++) {
      auto samples = alike(topology, {30, 110, 60});
      for (LevelSamples& rounds : samples[liar]) rounds.fill({nonsense, nonsense, nonsense});
      Costs costs = agreed(topology, samples);
      EXPECT_EQ(costs.levels, right.levels) << liar << " says " << nonsense;
    }
}

// A rank was stopped: of the two directions of the only pair one is right.
TEST(Agreement, OfTwoHostsTakesTheBetterOfTwo) {
  Topology topology = on_hosts({"a", "b"});
  auto samples = nothing_measured(topology);
  samples[0][1][0] = {30, 117, 117};
  samples[1][1][0] = {0, 12, 12};
  EXPECT_EQ(agreed(topology, samples).levels[1], (LevelCost{"network", 30, 117, 117}));
  samples[0][1][0] = {};  // and now only the other
  EXPECT_EQ(agreed(topology, samples).levels[1].rank_bytes_per_us, 12);
}

TEST(Agreement, FallsBackOnWhatIsThere) {
  Topology topology = on_hosts({"a", "a", "b", "b"});
  auto samples = nothing_measured(topology);
  EXPECT_EQ(agreed(topology, samples).source, "defaults");
  for (Rank rank = 0; rank < 4; rank++) samples[rank][1][0].lane_bytes_per_us = 50;
  LevelCost network = agreed(topology, samples).levels[1];  // nobody alone
  EXPECT_EQ(network.rank_bytes_per_us, 50);
  EXPECT_EQ(network.group_bytes_per_us, 100);
  EXPECT_EQ(network.latency_us, default_cost("network", false, false).latency_us);
  EXPECT_EQ(agreed(topology, samples).source,
            "defaults (host, network latency), measured (network rates)");
  samples[1][1][0].lane_bytes_per_us = 0;  // is taken to be like the other lane
  EXPECT_EQ(agreed(topology, samples).levels[1], network);
}

TEST(Agreement, LeavesWhatIsGiven) {
  Topology topology = on_hosts({"a", "a", "b", "b"});
  std::vector<LevelCost> given = {{"network", 1, 2, 3}, {"spine", 4, 5, 6}};
  Costs costs = agree_on_costs(topology, alike(topology, {2, 100, 40}), given, "file");
  EXPECT_EQ(costs.levels[1], given[0]);
  EXPECT_EQ(costs.source, "measured (host), file (network)");
  EXPECT_EQ(describe(costs.levels), "host 2 us 0.1 GB/s, network 1 us 0.002 GB/s");
}

TEST(Pairs, BetweenSocketsAreLanesOfThese) {
  Topology topology = testing::on_sockets(1, 3);
  auto sections = sections_of(topology, 1);
  ASSERT_EQ(sections.size(), 1u);
  EXPECT_EQ(sections[0].ranks, (std::vector<Rank>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(sections[0].begin, (std::vector<size_t>{0, 3}));
  EXPECT_EQ(sections_of(topology, 0).size(), 2u);
}

TEST(Agreement, TakesWhatIsInsideAHostForMemory) {
  Topology topology = testing::on_sockets(2, 2);
  Costs costs = agreed(topology, nothing_measured(topology));
  ASSERT_EQ(costs.levels.size(), 3u);
  EXPECT_EQ(costs.levels[0], default_cost("socket", true, false));
  EXPECT_EQ(costs.levels[1], default_cost("host", true, false));
  EXPECT_EQ(costs.levels[2], default_cost("network", false, false));
}

TEST(CostsOfAPart, AreThoseOfItsLevels) {
  Costs whole{{{"socket", 1, 2, 3}, {"host", 4, 5, 6}, {"network", 7, 8, 9}}, "measured"};
  Costs part = costs_of_part(testing::on_sockets(1, 2), whole);
  EXPECT_EQ(part.source, "measured");
  EXPECT_EQ(part.levels, (std::vector<LevelCost>{{"socket", 1, 2, 3}, {"host", 4, 5, 6}}));
  EXPECT_EQ(costs_of_part(on_hosts({"a", "b", "b"}), whole).levels,
            (std::vector<LevelCost>{{"host", 4, 5, 6}, {"network", 7, 8, 9}}));
  // Nobody has measured between the caches of a socket.
  whole.levels.erase(whole.levels.begin());
  EXPECT_EQ(costs_of_part(testing::on_sockets(1, 2), whole).levels,
            (std::vector<LevelCost>{{"socket", 4, 5, 6}, {"host", 4, 5, 6}}));
}

TEST(Agreement, HasNothingToMeasureForOneRank) {
  Topology topology = on_hosts({"a"});
  EXPECT_EQ(agreed(topology, nothing_measured(topology)).source, "defaults");
}

}  // namespace
}  // namespace ringcoll
