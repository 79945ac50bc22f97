#include "coll/call_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "life/lifelines_testing.h"

namespace ringcoll {
namespace {

using testing::join, testing::Node, testing::soon;

Signature numbered(uint64_t n) {
  return {.count = static_cast<int64_t>(3 * n),
          .sequence = static_cast<uint32_t>(n),
          .details = static_cast<uint32_t>(5 * n),
          .root = static_cast<int32_t>(7 * n)};
}

TEST(CallLog, HasTheLastCalls) {
  CallLog log;
  EXPECT_FALSE(log.at(0));
  EXPECT_FALSE(log.at(1));
  for (uint64_t n = 1; n <= 3 * CallLog::kKept; n++) {
    log.add(numbered(n));
    ASSERT_EQ(log.latest(), n);
    ASSERT_EQ(log.at(n), numbered(n));
    ASSERT_FALSE(log.at(n + 1));
    if (n < CallLog::kKept) {
      ASSERT_EQ(log.at(1), numbered(1));
    } else {
      ASSERT_EQ(log.at(n - CallLog::kKept + 2), numbered(n - CallLog::kKept + 2));
      ASSERT_FALSE(log.at(n - CallLog::kKept));
    }
  }
}

// What is being replaced is not taken for a call.
TEST(CallLog, IsReadWhileItIsWritten) {
  constexpr uint64_t kCalls = 1'000'000;
  CallLog log;
  std::atomic<bool> begun{false};
  std::thread writer([&] {
    while (!begun) std::this_thread::yield();
    for (uint64_t n = 1; n <= kCalls; n++) log.add(numbered(n));
  });
  begun = true;
  uint64_t found = 0;
  for (uint64_t latest = 0; latest < kCalls;) {
    latest = log.latest();
    for (uint64_t back : {uint64_t{0}, CallLog::kKept / 2, CallLog::kKept - 2}) {
      if (latest <= back) continue;
      auto signature = log.at(latest - back);
      if (!signature) continue;
      found++;
      ASSERT_EQ(*signature, numbered(latest - back));
    }
  }
  writer.join();
  EXPECT_GT(found, 0u);
}

/// Two ranks that make calls without messages.
class Watches : public ::testing::Test {
 protected:
  Watches() {
    for (Rank rank : {0, 1}) nodes_.push_back(std::make_unique<Node>(rank, 2));
    join(*nodes_[0], 0, *nodes_[1], 1);
    for (Rank rank : {0, 1})
      watches_.push_back(std::make_unique<CallWatch>(*nodes_[rank]->health, rank));
  }
  ~Watches() override { watches_.clear(); }

  Health& health(Rank rank) { return *nodes_[rank]->health; }
  void make(Rank rank, const Call& call) {
    watches_[rank]->begin(signature_of(call, 2, ++made_[rank]), call);
  }
  static Call broadcast_of(Rank root) {
    static const rc_buffer one{nullptr, nullptr, 1};
    return {.collective = RC_BROADCAST, .root = root, .buffers = {&one, 1}};
  }
  bool knows(Rank rank) {
    return soon([&] { return health(rank).poisoned(); });
  }
  std::string text(Rank rank) { return health(rank).error().what(); }

  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<CallWatch>> watches_;
  uint64_t made_[2] = {};
};

TEST_F(Watches, FindCallsThatDiffer) {
  make(0, broadcast_of(0));
  make(1, broadcast_of(1));
  ASSERT_TRUE(knows(0) && knows(1));
  EXPECT_EQ(health(0).error().code(), Code::kMismatch);
  EXPECT_EQ(text(0), text(1));
  EXPECT_EQ(text(0),
            "ranks disagree about the root: rank 0 runs broadcast #1 of 1 uint8, root 0; rank 1 "
            "runs broadcast #1 of 1 uint8, root 1: all ranks must make the same calls, with the "
            "same arguments, in the same order");
}

TEST_F(Watches, LeaveThoseInPeaceThatAreAlike) {
  for (int i = 0; i < 300; i++)
    for (Rank rank : {0, 1}) make(rank, broadcast_of(i % 2));
  make(0, broadcast_of(0));  // of which the other is late
  std::this_thread::sleep_for(10 * Health::kTick);
  EXPECT_FALSE(health(0).poisoned() || health(1).poisoned());
}

// Who is told of a call that it has yet to make compares it when it does, and goes on.
TEST_F(Watches, FindCallsOfARankThatIsLate) {
  make(0, broadcast_of(0));
  std::this_thread::sleep_for(20 * Health::kTick);
  EXPECT_FALSE(health(0).poisoned() || health(1).poisoned());
  make(1, broadcast_of(1));
  for (int i = 0; i < 20; i++) make(1, broadcast_of(0));
  ASSERT_TRUE(knows(0) && knows(1));
  EXPECT_NE(text(1).find("broadcast #1"), std::string::npos) << text(1);
}

TEST_F(Watches, FindTheFirstOfManyCalls) {
  for (int i = 1; i <= 90; i++) {
    make(0, broadcast_of(0));
    make(1, broadcast_of(i == 50));
  }
  ASSERT_TRUE(knows(0) && knows(1));
  EXPECT_NE(text(0).find("broadcast #50"), std::string::npos) << text(0);
}

TEST_F(Watches, TellWhenTheyEnd) {
  make(0, broadcast_of(0));
  watches_[0].reset();
  make(1, broadcast_of(1));
  EXPECT_TRUE(knows(1));
}

TEST_F(Watches, NameFactorsAndCounts) {
  const rc_buffer one{nullptr, nullptr, 1};
  const std::vector<int64_t> rising = {1, 2}, falling = {2, 1};
  Call call{.collective = RC_ALLGATHER, .buffers = {&one, 1}, .counts = rising};
  make(0, call);
  call.counts = falling;
  call.prescale = 0.5;
  make(1, call);
  ASSERT_TRUE(knows(0) && knows(1));
  EXPECT_NE(text(0).find("ranks disagree about the prescale, the counts: rank 0 runs allgather #1 "
                         "of 3 uint8, prescale 1, counts 1, 2; rank 1 runs allgather #1 of 3 "
                         "uint8, prescale 0.5, counts 2, 1:"),
            std::string::npos)
      << text(0);
}

TEST_F(Watches, CompareWhatTwoRanksExchange) {
  const rc_buffer none{};
  const std::vector<int64_t> sent[] = {{5, 0}, {9, 5}}, received[] = {{5, 9}, {1, 5}};
  for (Rank rank : {0, 1})
    make(rank, {.collective = RC_ALLTOALL,
                .buffers = {&none, 1},
                .counts = sent[rank],
                .recv_counts = received[rank]});
  ASSERT_TRUE(knows(0) && knows(1));
  EXPECT_NE(text(0).find("rank 0 sends 0 elements to rank 1, which expects 1:"), std::string::npos)
      << text(0);
}

TEST_F(Watches, NonsenseIsDropped) {
  make(1, broadcast_of(0));
  for (size_t bytes : {0, 1, 15, 16, 40, 4096}) health(0).tell_calls(1, std::string(bytes, '\xff'));
  make(0, broadcast_of(1));
  ASSERT_TRUE(knows(1));
  EXPECT_EQ(health(1).error().code(), Code::kMismatch);
}

}  // namespace
}  // namespace ringcoll
