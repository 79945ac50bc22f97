// The dispatcher with carriers that do what a test tells them.
#include "remote/dispatcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ringcoll::remote {
namespace {

/// Keeps what it is asked, and never answers by itself.
class FakeCarrier final : public Carrier {
 public:
  explicit FakeCarrier(int suitability) : suits_by(suitability) { agent = 1; }
  int suits(const RegionHandle&, bool notice) const override { return notice ? 1 : suits_by; }
  uint64_t window_bytes() const override { return 2 * kChunkBytes; }
  void ask(const Request& request, const std::function<bool()>& wanted) override {
    if (wanted()) asked.push_back(request.id);
  }
  void abandon(const void*) override { abandoned++; }
  void ping() override { pings++; }
  Clock::time_point heard() const override { return last_heard; }
  const std::string& peer_text() const override { return text; }
  Way way() const override { return suits_by > 1 ? Way::kRdma : Way::kTcp; }

  int suits_by;
  std::vector<uint64_t> asked;
  int abandoned = 0, pings = 0;
  Clock::time_point last_heard = Clock::now();
  std::string text = "fake";
};

class Dispatching : public ::testing::Test {
 protected:
  std::shared_ptr<Batch> submit(uint64_t bytes, bool writes = false) {
    memory_.resize(bytes);
    auto region = std::make_shared<RegionHandle>();
    region->owner.id = 1;
    region->bytes = bytes;
    region->writable = true;
    Copy copy{.writes = writes, .local = memory_.data(), .bytes = bytes, .sources = {{region}}};
    auto batch = std::make_shared<Batch>(std::vector{copy}, seconds(20), nullptr);
    dispatcher_.submit(batch, {0}, {});
    return batch;
  }
  std::shared_ptr<FakeCarrier> add(int suitability) {
    auto carrier = std::make_shared<FakeCarrier>(suitability);
    dispatcher_.add(carrier);
    return carrier;
  }
  void answer(const FakeCarrier& carrier, uint64_t id) {
    dispatcher_.take(carrier, {.kind = FrameKind::kDone, .id = id}, "");
  }

  std::vector<std::byte> memory_;
  Dispatcher dispatcher_{[](const AgentFacts&) {}};
};

TEST_F(Dispatching, UsesOnlyCarriersThatSuitBest) {
  auto link = add(1), pair = add(2);
  auto batch = submit(4 * kChunkBytes);
  EXPECT_TRUE(link->asked.empty());
  ASSERT_EQ(pair->asked.size(), 2u);
  answer(*pair, pair->asked[0]);
  EXPECT_EQ(pair->asked.size(), 3u);
  EXPECT_TRUE(link->asked.empty());
  dispatcher_.cancel(batch, Error(Code::kAborted, "over"));
}

TEST_F(Dispatching, ReadsDoNotWaitForWritesNorWritesForReads) {
  auto link = add(1);
  auto writing = submit(4 * kChunkBytes, /*writes=*/true);
  ASSERT_EQ(link->asked.size(), 2u);  // the window of writes is full
  auto reading = submit(4 * kChunkBytes);
  ASSERT_EQ(link->asked.size(), 4u);
  answer(*link, link->asked[0]);  // of the writes
  EXPECT_EQ(link->asked.size(), 5u);
  for (const auto& batch : {writing, reading})
    dispatcher_.cancel(batch, Error(Code::kAborted, "over"));
}

TEST_F(Dispatching, WhatACarrierGivesBackGoesToAnother) {
  auto link = add(1), pair = add(2);
  auto batch = submit(kChunkBytes);
  ASSERT_EQ(pair->asked.size(), 1u);
  pair->suits_by = 0;
  dispatcher_.give_back(*pair, pair->asked[0]);
  ASSERT_EQ(link->asked.size(), 1u);
  answer(*link, link->asked[0]);
  EXPECT_TRUE(batch->has_ended());
  EXPECT_EQ(dispatcher_.ways()[Way::kTcp], kChunkBytes);
}

TEST_F(Dispatching, AChunkOfACarrierThatEndsGoesToAnother) {
  auto link = add(1), pair = add(2);
  auto batch = submit(kChunkBytes);
  dispatcher_.remove(*pair);
  answer(*pair, pair->asked[0]);  // too late
  EXPECT_FALSE(batch->has_ended());
  ASSERT_EQ(link->asked.size(), 1u);
  answer(*link, link->asked[0]);
  EXPECT_TRUE(batch->has_ended());
}

TEST_F(Dispatching, ACarrierThatWasIdleIsNotSilent) {
  auto link = add(1);
  link->last_heard = Clock::now() - seconds(60);
  auto batch = submit(kChunkBytes);
  dispatcher_.look();
  EXPECT_EQ(link->abandoned, 0);
  EXPECT_EQ(link->asked.size(), 1u);
  dispatcher_.cancel(batch, Error(Code::kAborted, "over"));
}

TEST_F(Dispatching, ACarrierThatDoesNotAnswerForASecondIsSilent) {
  auto link = add(1);
  auto batch = submit(kChunkBytes);
  for (Deadline end(seconds(1.2)); !end.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    dispatcher_.look();
  }
  EXPECT_GT(link->pings, 0);
  EXPECT_EQ(link->abandoned, 1);
  link->last_heard = Clock::now();
  dispatcher_.look();
  EXPECT_EQ(link->asked.size(), 2u);  // again
  dispatcher_.cancel(batch, Error(Code::kAborted, "over"));
}

}  // namespace
}  // namespace ringcoll::remote
