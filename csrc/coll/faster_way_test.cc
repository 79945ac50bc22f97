// Which of two ways is found to be the faster one.
#include "coll/faster_way.h"

#include <gtest/gtest.h>

#include <vector>

namespace ringcoll {
namespace {

using std::chrono::microseconds;

constexpr uint64_t kBytes = FasterWay::kLeastBytes;

/// Works until it has settled, each way as fast as is said. Returns the way that does the work.
size_t settle(FasterWay& ways, Duration first, Duration second) {
  for (size_t i = 0; i < 2 * FasterWay::kTrials; i++)
    ways.took(kBytes, ways.next() == 0 ? first : second);
  return ways.next();
}

TEST(FasterWay, IsTheOneWithTheBetterMedian) {
  FasterWay one, other;
  EXPECT_EQ(settle(one, microseconds(10), microseconds(11)), 0u);
  EXPECT_EQ(settle(other, microseconds(11), microseconds(10)), 1u);
}

TEST(FasterWay, TriesBothInTurn) {
  FasterWay ways;
  std::vector<size_t> tried;
  for (size_t i = 0; i < 4; i++) {
    tried.push_back(ways.next());
    ways.took(kBytes, microseconds(10));
  }
  EXPECT_EQ(tried, (std::vector<size_t>{0, 1, 0, 1}));
}

// A rank that is stopped now and then has not found out anything.
TEST(FasterWay, InterruptionsAreOutvoted) {
  FasterWay ways;
  for (size_t i = 0; i < 2 * FasterWay::kTrials; i++) {
    bool second = ways.next() == 1;
    bool stopped = i < FasterWay::kTrials - 2;
    ways.took(kBytes, second && stopped ? microseconds(5000) : microseconds(second ? 9 : 10));
  }
  EXPECT_EQ(ways.next(), 1u);
}

TEST(FasterWay, WhatIsShortDoesNotCount) {
  FasterWay ways;
  for (size_t i = 0; i < 100; i++) ways.took(kBytes - 1, microseconds(1));
  EXPECT_EQ(ways.next(), 0u);
  ways.took(kBytes, microseconds(1));
  EXPECT_EQ(ways.next(), 1u);
}

TEST(FasterWay, IsFoundAnewAfterARest) {
  FasterWay ways;
  ASSERT_EQ(settle(ways, microseconds(11), microseconds(10)), 1u);
  for (uint64_t bytes = 0; bytes + kBytes < FasterWay::kRestBytes; bytes += kBytes) {
    ways.took(kBytes, microseconds(10));
    ASSERT_EQ(ways.next(), 1u);
  }
  ways.took(kBytes, microseconds(10));
  EXPECT_EQ(ways.next(), 0u) << "it is tried again";
  EXPECT_EQ(settle(ways, microseconds(10), microseconds(11)), 0u);
}

}  // namespace
}  // namespace ringcoll
