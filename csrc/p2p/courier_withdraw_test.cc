// Sends that are given up before their receive has come.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "p2p/courier.h"
#include "p2p/couriers_testing.h"

namespace ringcoll {
namespace {

using testing::Behaviour;
using testing::kCalm;
using testing::kSmall;
using testing::Letter;
using testing::Ranks;
using Stage = Transfer::Stage;

class Withdrawn : public ::testing::TestWithParam<Behaviour> {};
INSTANTIATE_TEST_SUITE_P(All, Withdrawn, ::testing::ValuesIn(testing::behaviours()),
                         [](const auto& info) { return info.param.name; });

/// Its caller has the memory back, and writes there.
void withdraw(Ranks& ranks, Letter& send) {
  ASSERT_EQ(send.stage, Stage::kOffered);
  ranks.couriers[send.rank]->withdraw(&send, Error(Code::kTimeout, "late"));
  ASSERT_TRUE(send.over && send.error);
  std::ranges::fill(send.memory, std::byte{0xee});
}

TEST_P(Withdrawn, ALongMessageIsNotReceived) {
  Ranks ranks(2, GetParam(), 1);
  Letter& late = ranks.send(0, 1, 3, 5000);
  ranks.settle();
  withdraw(ranks, late);
  Letter& receive = ranks.receive(1, 0, 3, 5000);
  ranks.settle();
  EXPECT_FALSE(receive.over);
  Letter& next = ranks.send(0, 1, 3, 4000);
  ranks.settle();
  ASSERT_TRUE(next.over && receive.over);
  EXPECT_FALSE(next.error || receive.error);
  EXPECT_EQ(receive.received.bytes, 4000u);
  EXPECT_TRUE(std::equal(next.memory.begin(), next.memory.end(), receive.memory.begin()));
  EXPECT_TRUE(ranks.couriers[0]->quiet() && ranks.couriers[1]->quiet());
}

TEST_P(Withdrawn, WhatThePeerHasNotHeardOfIsNotSent) {
  for (uint64_t bytes : {10, 70, 90, 5000}) {
    Ranks ranks(2, GetParam(), bytes);
    Letter& late = ranks.send(0, 1, 3, bytes);
    withdraw(ranks, late);
    Letter& next = ranks.send(0, 1, 3, bytes + 1);
    Letter& receive = ranks.receive(1, 0, 3, 6000);
    ranks.settle();
    ASSERT_TRUE(next.over && receive.over);
    EXPECT_EQ(receive.received.bytes, bytes + 1);
    EXPECT_TRUE(std::equal(next.memory.begin(), next.memory.end(), receive.memory.begin()));
  }
}

// It has been copied to where it would be sent from, for which there was no credit.
TEST(Courier, AShortMessageThatWaitsForCreditLeavesNothingBehind) {
  Behaviour few = kCalm;
  few.inline_bytes = 0;
  few.credits = 1;
  Ranks ranks(2, few, 1);
  Letter& first = ranks.send(0, 1, 1, 10);
  Letter& late = ranks.send(0, 1, 2, 70);
  ranks.couriers[0]->advance_thoroughly();
  ASSERT_TRUE(first.over);
  withdraw(ranks, late);
  Letter& next = ranks.send(0, 1, 2, 60);
  ranks.settle();
  Letter& receive = ranks.receive(1, 0, 2, 100);
  ranks.settle();
  ASSERT_TRUE(next.over && receive.over);
  EXPECT_EQ(receive.received.bytes, 60u);
  EXPECT_TRUE(std::equal(next.memory.begin(), next.memory.end(), receive.memory.begin()));
}

/// A message of which its receiver has read a piece, alone, so that the sender knows of nothing.
struct HalfRead : ::testing::Test {
  HalfRead() {
    ranks.couriers[0]->advance_thoroughly();
    ranks.couriers[1]->advance_thoroughly();
    EXPECT_EQ(receive.moved, kSmall.read_bytes);
  }
  Ranks ranks{3, kCalm, 1};
  Letter& send = ranks.send(0, 1, 1, 5000);
  Letter& receive = ranks.receive(1, 0, 1, 5000);
};

TEST_F(HalfRead, IsNoMessageAndItsReceiveWaitsAgain) {
  Letter& later = ranks.receive(1, 0, 1, 5000);
  withdraw(ranks, send);
  ranks.settle();
  EXPECT_FALSE(receive.over);
  EXPECT_EQ(receive.stage, Stage::kPosted);
  EXPECT_EQ(receive.received.source, kNobody);
  EXPECT_EQ(ranks.couriers[1]->trouble_of(receive), nullptr);
  Letter& next = ranks.send(0, 1, 1, 3000);
  ranks.settle();
  EXPECT_TRUE(receive.over) << "it was asked for first";
  EXPECT_FALSE(later.over);
  EXPECT_TRUE(std::equal(next.memory.begin(), next.memory.end(), receive.memory.begin()));
}

TEST(Courier, AMessageThatIsWithdrawnDoesNotSpoilOthers) {
  Ranks ranks(3, kCalm, 1);
  Letter& late = ranks.send(0, 1, 1, 5000);
  Letter& other = ranks.send(0, 1, 2, 4000);
  Letter& third = ranks.send(0, 2, 1, 4000);
  ranks.couriers[0]->advance_thoroughly();
  Letter& unmet = ranks.receive(1, 0, 1, 5000);
  Letter& to_other = ranks.receive(1, 0, 2, 4000);
  Letter& to_third = ranks.receive(2, 0, 1, 4000);
  for (int i = 0; i < 5; i++)
    for (Rank rank : {1, 2}) ranks.couriers[rank]->advance_thoroughly();
  EXPECT_GT(unmet.moved, 0u);
  EXPECT_GT(to_third.moved, 0u);
  EXPECT_FALSE(to_third.over);
  withdraw(ranks, late);
  for (Rank rank : {1, 2}) ranks.couriers[rank]->advance_thoroughly();  // who have not heard of it
  ranks.settle();
  ASSERT_TRUE(to_other.over && to_third.over);
  EXPECT_FALSE(to_other.error || to_third.error);
  EXPECT_EQ(to_other.memory, other.memory);
  EXPECT_EQ(to_third.memory, third.memory);
  EXPECT_FALSE(unmet.over);
}

// Where memory has gone, too, which its caller has unmapped.
TEST_F(HalfRead, WhoseMemoryHasGoneIsNoLostPeer) {
  withdraw(ranks, send);
  send.memory = {};
  send.memory.shrink_to_fit();
  ranks.settle();
  EXPECT_EQ(ranks.couriers[1]->trouble_of(receive), nullptr);
  EXPECT_EQ(receive.stage, Stage::kPosted);
}

TEST_P(Withdrawn, RandomStoriesMixUpNothing) {
  for (uint64_t seed = 0; seed < 100; seed++) {
    SCOPED_TRACE(seed);
    Ranks ranks(3, GetParam(), seed);
    auto below = [&](uint64_t n) { return static_cast<int>(ranks.random() % n); };
    struct Pair {
      Letter *send, *receive = nullptr;
      std::vector<std::byte> content;
    };
    std::vector<Pair> pairs;
    for (int tag = 0; tag < 12; tag++) {
      Rank from = below(3), to = (from + 1 + below(2)) % 3;
      Letter& send = ranks.send(from, to, tag, 1 + below(below(2) ? 90 : 3000));
      pairs.push_back({&send, nullptr, send.memory});
      if (below(2)) pairs.back().receive = &ranks.receive(to, from, tag, 3000);
      for (int i = below(15); i > 0; i--) ranks.advance_one();
      Letter& any = *pairs[static_cast<size_t>(below(pairs.size()))].send;
      if (below(2) && any.stage == Stage::kOffered) withdraw(ranks, any);
    }
    for (Pair& each : pairs)
      if (!each.receive)
        each.receive = &ranks.receive(each.send->peer, each.send->rank, each.send->tag, 3000);
    ranks.settle();
    for (Pair& each : pairs) {
      ASSERT_TRUE(each.send->over);
      ASSERT_FALSE(each.receive->error);
      ASSERT_TRUE(each.receive->over || each.send->error);
      if (each.receive->over) {
        ASSERT_TRUE(
            std::equal(each.content.begin(), each.content.end(), each.receive->memory.begin()));
      } else {
        ASSERT_EQ(each.receive->stage, Stage::kPosted);
      }
    }
    for (auto& courier : ranks.couriers) ASSERT_TRUE(courier->quiet());
  }
}

}  // namespace
}  // namespace ringcoll
