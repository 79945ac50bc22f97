// Links are measured over every transport that works in one process, with links that behave badly.
#include "measure/measure.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "base/error.h"
#include "measure/pairs.h"
#include "topology/hosts_testing.h"
#include "transport/faulty_testing.h"
#include "transport/verbs/device_testing.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using testing::Faults;
using testing::FaultyEndpoint;
using testing::on_hosts;

/// The links of one rank of a World; ends all waits once `lost`.
class TestLinks final : public MeasuredLinks {
 public:
  TestLinks(testing::TestRank& rank, bool network, std::atomic<bool>& lost)
      : rank_(rank), network_(network), lost_(lost) {}
  Endpoint& link(Rank peer) override { return rank_[peer]; }
  void wait(Rank /*peer*/, const std::function<bool()>& ready) override {
    Deadline deadline(seconds(60));
    while (!ready()) {
      check(!lost_ && !deadline.passed(), Code::kPeerLost, "gone");
      rank_.waits.sleep(std::chrono::milliseconds(1));
    }
  }
  bool is_network(Rank) const override { return network_; }
  std::span<std::byte> memory() override { return {rank_.arena.data(), rank_.arena.bytes()}; }
  bool wants_places() const override { return rank_.transport->wants_places(); }

 private:
  testing::TestRank& rank_;
  bool network_;
  std::atomic<bool>& lost_;
};

class Measuring : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    if (GetParam() == "verbs" && !testing::rdma_of_the_host()) device_.emplace(in_background());
    Probe probe = row().probe(testing::test_config());
    ASSERT_TRUE(probe.usable) << probe.detail;
  }
  // So that memory that is used again too early is found out.
  static verbs::FakeOptions in_background() { return {.in_background = true}; }
  const TransportRow& row() const { return *find_transport(GetParam()); }
  /// What all ranks measure; `faults` of the links of a rank. A rank that throws ends the others.
  std::vector<std::vector<LevelSamples>> measure(const Topology& topology,
                                                 std::map<Rank, Faults> faults = {},
                                                 const std::map<Rank, Duration>& late = {},
                                                 int share = 1) {
    Rank size = topology.size();
    testing::World world(row(), size, arena_bytes_);
    for (auto [rank, fault] : faults)
      for (Rank peer = 0; peer < size; peer++) {
        auto& link = world[rank].links[peer];
        if (link && is_faulty_(rank, peer))
          link = std::make_unique<FaultyEndpoint>(std::move(link), fault);
      }
    std::vector<std::vector<LevelSamples>> samples(size);
    std::vector<std::thread> threads;
    std::vector<bool> wanted(topology.levels(), true);
    for (Rank rank = 0; rank < size; rank++)
      threads.emplace_back([&, rank] {
        TestLinks links(world[rank], row().link == LinkClass::kNetwork, lost_);
        try {
          if (auto by = late.find(rank); by != late.end()) std::this_thread::sleep_for(by->second);
          samples[rank] = measure_links(topology, rank, wanted, share, links);
        } catch (const Error&) {
          lost_ = true;
          failed_++;
        }
      });
    for (auto& thread : threads) thread.join();
    // What was measured has left nothing behind: the next message is the next call's.
    for (Rank rank = 1; rank < size && failed_ == 0; rank++) {
      testing::send(world[0][rank], testing::envelope_of(7), nullptr, 0);
      testing::flush(world[0][rank]);
      View view = testing::receive(world[rank][0]);
      EXPECT_EQ(view.envelope, testing::envelope_of(7));
    }
    return samples;
  }
  static Costs agreed(const Topology& topology,
                      const std::vector<std::vector<LevelSamples>>& samples) {
    return agree_on_costs(topology, samples, {}, "");
  }

  std::optional<verbs::FakeVerbs> device_;
  /// Of the links of ranks with faults: those that have them.
  std::function<bool(Rank rank, Rank peer)> is_faulty_ = [](Rank, Rank) { return true; };
  size_t arena_bytes_ = 1 << 20;
  std::atomic<bool> lost_{false};
  std::atomic<int> failed_{0};
};

INSTANTIATE_TEST_SUITE_P(, Measuring, ::testing::ValuesIn(testing::transport_names()),
                         [](const auto& info) { return std::string(info.param); });

void expect_sane(const Costs& costs, int levels) {
  ASSERT_EQ(costs.levels.size(), static_cast<size_t>(levels));
  for (const LevelCost& cost : costs.levels) {
    EXPECT_GT(cost.latency_us, 0);
    EXPECT_LT(cost.latency_us, 1e6);
    EXPECT_GT(cost.rank_bytes_per_us, 0);
    EXPECT_GT(cost.group_bytes_per_us, 0);
  }
}

TEST_P(Measuring, GivesNumbersForEveryLevel) {
  for (const auto& hosts : std::vector<std::vector<std::string>>{
           {"a", "a"}, {"a", "b"}, {"a", "a", "a"}, {"a", "b", "a", "b"}, {"a", "b", "c", "c"}}) {
    Topology topology = on_hosts(hosts);
    for (int share : {1, 3}) {
      auto samples = measure(topology, {}, {}, share);
      ASSERT_EQ(failed_, 0);
      expect_sane(agreed(topology, samples), topology.levels());
      EXPECT_GT(samples[0].back()[0].latency_us, 0) << "the lower rank of a pair has it";
    }
  }
}

TEST_P(Measuring, GivesNumbersForSocketsToo) {
  for (int hosts : {1, 2}) {
    Topology topology = testing::on_sockets(hosts, 2);
    ASSERT_EQ(topology.host_level(), 1);
    auto samples = measure(topology);
    ASSERT_EQ(failed_, 0);
    Costs costs = agreed(topology, samples);
    expect_sane(costs, topology.levels());
    EXPECT_EQ(costs.source, "measured");
  }
}

// A link between sockets is measured as that of memory, in step, and counts for its level alone.
TEST_P(Measuring, WhatIsSlowBetweenSocketsIsSoThere) {
  Topology topology = testing::on_sockets(1, 2);
  std::map<Rank, Faults> faults;
  for (Rank rank = 0; rank < 4; rank++) faults[rank].delay_recv = std::chrono::milliseconds(5);
  is_faulty_ = [&](Rank a, Rank b) { return topology.group_of(0, a) != topology.group_of(0, b); };
  auto costs = agreed(topology, measure(topology, faults));
  ASSERT_EQ(failed_, 0);
  EXPECT_GT(costs.levels[1].latency_us, 4000);
  EXPECT_LT(costs.levels[0].latency_us, 4000);
}

// Pairs that ping each other would have the cores to themselves, one pair after the other.
TEST_P(Measuring, RanksThatShareCoresExchangeMessagesInStep) {
  Topology topology = on_hosts({"a", "a", "b", "b", "c", "c"});
  std::map<Rank, Faults> faults;
  faults[4].delay_recv = std::chrono::milliseconds(5);
  for (int share : {1, 2}) {
    auto samples = measure(topology, faults, {}, share);
    ASSERT_EQ(failed_, 0);
    for (Rank rank = 0; rank < 4; rank++) {
      double us = samples[rank][1][0].latency_us;
      if (share == 1)
        EXPECT_LT(us, 2e3) << "its pair alone is slow: rank " << rank;
      else
        EXPECT_GE(us, 2e3) << rank;
    }
  }
}

// It measures with a neighbour that it never streams with.
TEST_P(Measuring, UnequalHostsThatShareCoresToo) {
  Topology topology = on_hosts({"a", "b", "b", "c", "c", "d"});
  auto samples = measure(topology, {}, {}, 2);
  ASSERT_EQ(failed_, 0);
  EXPECT_GT(samples[2][1][0].latency_us, 0);
  EXPECT_GT(samples[4][1][0].latency_us, 0);
  expect_sane(agreed(topology, samples), 2);
}

TEST_P(Measuring, NeedsNothingForOneRank) {
  Topology topology = on_hosts({"a"});
  EXPECT_EQ(agreed(topology, measure(topology)).source, "defaults");
}

// Each place of a link is a page that is touched for the first time: calls come later.
TEST_P(Measuring, TheFirstMessagesWithinAHostDoNotCount) {
  bool network = row().link == LinkClass::kNetwork;
  const uint64_t places = network ? 2 : 32;
  const Duration slow = std::chrono::milliseconds(network ? 50 : 5);
  Topology topology = on_hosts({"a", "a", "a"});
  std::map<Rank, Faults> faults;
  faults[1] = {.delay_recv = slow, .delay_recvs = places};
  auto samples = measure(topology, faults);
  ASSERT_EQ(failed_, 0);
  for (Rank rank = 0; rank < 3; rank++) {
    EXPECT_GT(samples[rank][0][0].latency_us, 0) << "the odd one too";
    EXPECT_LT(samples[rank][0][0].latency_us, to_seconds(slow) * 1e6 / 5);
  }
}

// Whose streams are short.
class MeasuringMemory : public Measuring {};
std::vector<std::string_view> names_of_memory() {
  std::vector<std::string_view> found = testing::transport_names();
  std::erase_if(found, [](auto name) { return find_transport(name)->link == LinkClass::kNetwork; });
  return found;
}
INSTANTIATE_TEST_SUITE_P(, MeasuringMemory, ::testing::ValuesIn(names_of_memory()),
                         [](const auto& info) { return std::string(info.param); });

// All of one may be slow.
TEST_P(MeasuringMemory, OneSlowStreamDoesNotDecide) {
  arena_bytes_ = 64 << 10;  // so that messages are of 4 KiB and do not grow
  // Not so long that the stream would show that somebody was stopped.
  constexpr auto kSlow = std::chrono::microseconds(30);
  constexpr double kSlowBytesPerUs = 4096.0 / 30;
  constexpr int kMostStarts = 50;
  Topology topology = on_hosts({"a", "a"});
  std::map<Rank, Faults> faults;
  for (Rank rank : {0, 1}) faults[rank].delay_stream = kSlow;
  // A busy machine may stop all the other streams of a start. One that the slow stream decides is
  // never fast.
  bool fast = false;
  for (int start = 0; !fast && start < kMostStarts; start++) {
    auto samples = measure(topology, faults);
    ASSERT_EQ(failed_, 0);
    fast = samples[0][0][0].rank_bytes_per_us > kSlowBytesPerUs;
  }
  EXPECT_TRUE(fast);
}

// Whatever the contract of endpoints allows.
TEST_P(Measuring, EndsOnLinksThatBehaveBadly) {
  Topology topology = on_hosts({"a", "a", "b", "b"});
  std::map<Rank, Faults> faults;
  faults[0].refuse_send_every = 3;
  faults[1].hide_recv_every = 2;
  faults[2].lag_completed_polls = 5;
  faults[3].repeat_polls = 2;
  auto samples = measure(topology, faults);
  ASSERT_EQ(failed_, 0);
  expect_sane(agreed(topology, samples), 2);
}

// A rank that takes 20 ms for every message: its pair of three says so, and is outvoted.
TEST_P(Measuring, ASlowRankDoesNotDecide) {
  Topology topology = on_hosts({"a", "b", "c", "d", "e", "f"});
  std::map<Rank, Faults> faults;
  faults[3].delay_recv = std::chrono::milliseconds(20);
  auto samples = measure(topology, faults);
  ASSERT_EQ(failed_, 0);
  double slow_us = samples[2][1][0].latency_us;
  EXPECT_GE(slow_us, 1e4);
  EXPECT_LT(agreed(topology, samples).levels[1].latency_us, slow_us);
}

TEST_P(Measuring, WaitsForARankThatComesLate) {
  Topology topology = on_hosts({"a", "b"});
  auto samples = measure(topology, {}, {{1, std::chrono::milliseconds(300)}});
  ASSERT_EQ(failed_, 0);
  EXPECT_LT(samples[0][1][0].latency_us, 3e5 / 2) << "the time until it came is not the link's";
}

TEST_P(Measuring, EndsWithALinkThatBreaks) {
  for (uint64_t at : {1, 4, 20, 40}) {
    std::map<Rank, Faults> faults;
    faults[1].fail_recv = at;
    lost_ = false, failed_ = 0;
    measure(on_hosts({"a", "b", "a", "b"}), faults);
    EXPECT_GE(failed_, 1);
  }
}

}  // namespace
}  // namespace ringcoll
