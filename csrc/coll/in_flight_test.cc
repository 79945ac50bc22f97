// Several calls in flight on each transport, with memory that is lent.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coll/world_testing.h"
#include "transport/verbs/device_testing.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using testing::Member;

[[maybe_unused]] auto* const kDevice =
    ::testing::AddGlobalTestEnvironment(new testing::RdmaForTests);

/// Calls from a list; who executes them leaves now and then, if there is a `chance`.
class List final : public CallSource {
 public:
  explicit List(std::deque<Call> calls, std::mt19937* chance = nullptr)
      : calls_(std::move(calls)), chance_(chance) {}

  bool has_next() const override { return begun_ < calls_.size(); }
  const Call* next() override {
    if (!has_next()) return nullptr;
    most_in_flight_ = std::max(most_in_flight_, ++begun_ - ended_);
    return &calls_[begun_ - 1];
  }
  void ended(std::optional<Error> error) override {
    EXPECT_FALSE(error) << error->what();
    ended_++;
  }
  bool leaves(bool) override { return chance_ && (*chance_)() % 32 == 0; }
  size_t ended() const { return ended_; }
  size_t most_in_flight() const { return most_in_flight_; }

 private:
  std::deque<Call> calls_;
  std::mt19937* chance_;
  size_t begun_ = 0, ended_ = 0, most_in_flight_ = 0;
};

class InFlight : public ::testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(, InFlight, ::testing::ValuesIn(testing::transport_names()),
                         [](const auto& info) { return std::string(info.param); });

// The same tensors three times: from the second on a device has them registered.
TEST_P(InFlight, SendsTensorsAsTheyLie) {
  constexpr size_t kTensors = 12;
  constexpr int64_t kCount = 50000;
  Config config = testing::test_config(std::string(GetParam()));
  // Each rank begins with what is its own. In others some send nothing but sums, of the arena.
  config.algorithm = "ring";
  testing::run_world(3, config, [&](Member& m) {
    std::vector<std::vector<float>> in(kTensors), out(kTensors);
    std::vector<rc_buffer> buffers(kTensors);
    size_t most = 0;
    for (int turn = 1; turn <= 3; turn++) {
      std::deque<Call> calls;
      for (size_t i = 0; i < kTensors; i++) {
        in[i].assign(kCount, static_cast<float>(turn) * static_cast<float>(i + m.rank));
        out[i].assign(kCount, -1);
        buffers[i] = {in[i].data(), out[i].data(), kCount};
        calls.push_back({.collective = RC_ALLREDUCE,
                         .dtype = RC_FLOAT32,
                         .op = RC_SUM,
                         .buffers = std::span(&buffers[i], 1)});
      }
      List list(std::move(calls));
      while (list.ended() < kTensors) m.executor.run_all(list);
      most = std::max(most, list.most_in_flight());
      for (size_t i = 0; i < kTensors; i++) {
        auto expected = static_cast<float>(turn) * static_cast<float>(3 * i + 3);
        ASSERT_EQ(std::ranges::count(out[i], expected), kCount) << "tensor " << i;
      }
    }
    EXPECT_GT(most, 1u);
    if (GetParam() == "tcp" || GetParam() == "verbs") {
      EXPECT_GT(m.comm.counters().bytes_sent_zero_copy, 0u);
    }
  });
}

// Behind one whose pieces have all the slots: a call that has several addresses, or an empty chunk,
// is asked more than once to begin.
TEST_P(InFlight, KeepsAddressesOfTensorsThatWaitForASlot) {
  constexpr int64_t kLong = 32768, kFirst = 9, kSecond = 20;
  Config config = testing::test_config(std::string(GetParam()));
  config.slots = 2;
  config.segment_bytes = 64 << 10;  // two pieces, in flight until the root has sent
  config.algorithm = "broadcast=chain";
  testing::run_world(4, config, [&](Member& m) {
    const std::vector<int64_t> counts = {4, 0, 3, 2};
    for (int turn = 0; turn < 20; turn++) {  // without links yet the first are not in flight
      std::vector<float> large(kLong, 1), first(kFirst, 2), second(kSecond, 3), gathered(9, -1);
      std::vector<float> chunk(static_cast<size_t>(counts[static_cast<size_t>(m.rank)]), 7);
      rc_buffer one = {large.data(), large.data(), kLong};
      rc_buffer chunks = {chunk.data(), gathered.data(), 0};
      std::vector<rc_buffer> two = {{first.data(), first.data(), kFirst},
                                    {second.data(), second.data(), kSecond}};
      Call broadcast{.collective = RC_BROADCAST, .dtype = RC_FLOAT32, .root = m.size - 1};
      broadcast.buffers = std::span(&one, 1);
      Call sum{.collective = RC_ALLREDUCE, .dtype = RC_FLOAT32, .op = RC_SUM, .buffers = two};
      Call gather{.collective = RC_ALLGATHER, .dtype = RC_FLOAT32, .counts = counts};
      gather.buffers = std::span(&chunks, 1);
      List list({broadcast, sum, broadcast, gather});
      while (list.ended() < 4) m.executor.run_all(list);
      EXPECT_EQ(first, std::vector<float>(kFirst, 8));
      EXPECT_EQ(second, std::vector<float>(kSecond, 12));
      EXPECT_EQ(gathered, std::vector<float>(9, 7));
    }
  });
}

// A rank that waits for a credit receives nothing meanwhile. So no link may have more messages on
// their way than it takes, however many slots there are, and though a receiver tells late what it
// has released. This many ranks have enough rounds for all pieces to be in flight at once.
TEST_P(InFlight, PiecesDoNotWaitForCreditsInACircle) {
  constexpr Rank kRanks = 34;
  constexpr int64_t kCount = 64 * 1024;
  Config config = testing::test_config(std::string(GetParam()));
  config.slots = 64;
  config.segment_bytes = kRanks * 64;
  config.timeout_s = 20;
  config.algorithm = "ring";
  testing::run_world(kRanks, config, [&](Member& m) {
    constexpr size_t kCalls = 3;
    std::vector<std::vector<float>> values(kCalls);
    std::vector<rc_buffer> buffers(kCalls);
    std::deque<Call> calls;
    for (size_t i = 0; i < kCalls; i++) {
      values[i].assign(kCount, static_cast<float>(m.rank));
      buffers[i] = {values[i].data(), values[i].data(), kCount};
      calls.push_back({.collective = RC_ALLREDUCE, .dtype = RC_FLOAT32});
      calls.back().buffers = std::span(&buffers[i], 1);
    }
    List list(std::move(calls));
    while (list.ended() < kCalls) m.executor.run_all(list);
    for (const auto& sums : values)
      EXPECT_EQ(sums, std::vector<float>(kCount, kRanks * (kRanks - 1) / 2));
  });
}

// Wherever the one before left them, in the middle of a call or at its end.
TEST_P(InFlight, AnotherThreadGoesOn) {
  Config config = testing::test_config(std::string(GetParam()));
  testing::run_world(3, config, [](Member& m) {
    std::mt19937 chance(static_cast<unsigned>(m.rank) + 1);
    int left = 0;
    for (int turn = 0; turn < 20; turn++) {
      constexpr size_t kCalls = 10;
      std::vector<std::vector<float>> data(kCalls);
      std::vector<rc_buffer> buffers(kCalls);
      std::deque<Call> calls;
      for (size_t i = 0; i < kCalls; i++) {
        data[i].assign(i % 4 == 0 ? 50000 : 100, 1);
        buffers[i] = {data[i].data(), data[i].data(), static_cast<int64_t>(data[i].size())};
        calls.push_back({.collective = RC_ALLREDUCE,
                         .dtype = RC_FLOAT32,
                         .op = RC_SUM,
                         .buffers = std::span(&buffers[i], 1)});
      }
      List list(std::move(calls), &chance);
      while (list.ended() < kCalls) {
        std::thread([&] { m.executor.run_all(list); }).join();
        left += list.ended() < kCalls;
      }
      ASSERT_EQ(list.ended(), kCalls);
      for (auto& values : data)
        ASSERT_EQ(std::ranges::count(values, 3.0F), static_cast<ptrdiff_t>(values.size()));
    }
    EXPECT_GT(left, 20);
  });
}

/// Gives a call, and then fails as one whose argument was found wrong too late.
class Refusing final : public CallSource {
 public:
  explicit Refusing(const Call& call) : call_(call) {}

  bool has_next() const override { return !given_; }
  const Call* next() override { return std::exchange(given_, true) ? nullptr : &call_; }
  void ended(std::optional<Error> error) override { error_ = std::move(error); }
  bool leaves(bool) override { throw Error(Code::kInvalidArgument, "found late"); }
  const std::optional<Error>& error() const { return error_; }

 private:
  const Call& call_;
  bool given_ = false;
  std::optional<Error> error_;
};

// Callers go on after InvalidArgument, which a communicator that has failed would not let them.
TEST(Executor, WhatEndsACallIsNoInvalidArgument) {
  testing::run_world(2, testing::test_config("shm"), [](Member& m) {
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    Call call{.collective = RC_ALLREDUCE,
              .dtype = RC_FLOAT32,
              .op = RC_SUM,
              .buffers = std::span(&buffer, 1)};
    Refusing calls(call);
    m.executor.run_all(calls);
    ASSERT_TRUE(calls.error());
    EXPECT_EQ(calls.error()->code(), Code::kInternal) << calls.error()->what();
    EXPECT_NE(std::string(calls.error()->what()).find("found late"), std::string::npos);
    EXPECT_TRUE(m.comm.poisoned());
  });
}

}  // namespace
}  // namespace ringcoll
