// Which of several ways is found to be the fastest one.
#include "base/faster_way.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace ringcoll {
namespace {

using std::chrono::microseconds;

constexpr uint64_t kBytes = 32 << 10;
constexpr uint64_t kRestBytes = 128 << 20;

FasterWay ways_of(std::vector<double> weights, uint64_t warm_up_bytes = 0) {
  return FasterWay({.weights = std::move(weights),
                    .least_bytes = kBytes,
                    .first_warm_up_bytes = 2 * warm_up_bytes,
                    .warm_up_bytes = warm_up_bytes,
                    .rest_bytes = 2 * kRestBytes,
                    .rest_of_others_bytes = kRestBytes});
}

/// Works until no way is tried, each as fast as is said, of which only every `known`-th tells.
/// Returns how many works that took.
int try_all(FasterWay& ways, const std::vector<Duration>& times, int known = 1) {
  int works = 0;
  for (; ways.is_trying(kBytes); works++) {
    std::optional<Duration> time;
    if (ways.asks(kBytes) && works % known == 0) time = times[ways.next(kBytes)];
    ways.did(kBytes, time);
  }
  return works;
}

size_t found(FasterWay ways, const std::vector<Duration>& times) {
  try_all(ways, times);
  return ways.next(kBytes);
}

/// Works until all ways are tried again, and returns the bytes.
uint64_t rest(FasterWay& ways) {
  uint64_t bytes = 0;
  for (; !ways.is_trying(kBytes); bytes += kBytes) {
    EXPECT_FALSE(ways.asks(kBytes));
    ways.did(kBytes, {});
  }
  return bytes;
}

TEST(FasterWay, IsTheOneThatUsuallyTakesLess) {
  EXPECT_EQ(found(ways_of({1, 1}), {microseconds(10), microseconds(11)}), 0u);
  EXPECT_EQ(found(ways_of({1, 1}), {microseconds(11), microseconds(10)}), 1u);
  EXPECT_EQ(found(ways_of({1, 1, 1}), {microseconds(11), microseconds(10), microseconds(9)}), 2u);
}

TEST(FasterWay, TriesOneAfterTheOtherAndTimesItWhenItIsWarm) {
  FasterWay ways = ways_of({1, 1}, 3 * kBytes);
  for (size_t way : {0, 1}) {
    for (int i = 0; i < 6; i++) {
      EXPECT_EQ(ways.next(kBytes), way);
      EXPECT_FALSE(ways.asks(kBytes));
      ways.did(kBytes, {});
    }
    for (size_t i = 0; i < FasterWay::kTrials; i++) {
      EXPECT_EQ(ways.next(kBytes), way);
      EXPECT_TRUE(ways.asks(kBytes));
      ways.did(kBytes, microseconds(10 - way));
    }
  }
  EXPECT_EQ(ways.next(kBytes), 1u);
  rest(ways);
  EXPECT_EQ(try_all(ways, {microseconds(1), microseconds(2)}),
            2 * (3 + static_cast<int>(FasterWay::kTrials)))
      << "it warms up longer the first time";
}

// A rank that is stopped now and then has not found out anything.
TEST(FasterWay, InterruptionsAreOutvoted) {
  FasterWay ways = ways_of({1, 1});
  for (size_t i = 0; i < 2 * FasterWay::kTrials; i++) {
    bool second = ways.next(kBytes) == 1;
    bool stopped = i % FasterWay::kTrials < 3;
    ways.did(kBytes, second && stopped ? microseconds(5000) : microseconds(second ? 9 : 10));
  }
  EXPECT_EQ(ways.next(kBytes), 1u);
}

// By the median the first would be the faster one.
TEST(FasterWay, CountsShortWorksAndLong) {
  FasterWay ways = ways_of({1, 1});
  for (int work = 0; ways.is_trying(kBytes); work++) {
    bool first = ways.next(kBytes) == 0, stopped = work % FasterWay::kTrials == 3;
    bool waits_for_nothing = work % FasterWay::kTrials < 9;
    ways.did(kBytes, microseconds(first ? (waits_for_nothing ? 5 : 40) : stopped ? 10'000 : 12));
  }
  EXPECT_EQ(ways.next(kBytes), 1u);
}

TEST(FasterWay, AWayThatCostsMoreElsewhereHasToBeMuchFaster) {
  EXPECT_EQ(found(ways_of({1, 1.3}), {microseconds(10), microseconds(8)}), 0u);
  EXPECT_EQ(found(ways_of({1, 1.3}), {microseconds(10), microseconds(7)}), 1u);
}

TEST(FasterWay, WhatIsShortDoesNotCountAndGoesTheFirstWay) {
  FasterWay ways = ways_of({1, 1});
  for (size_t i = 0; i < 100; i++) {
    EXPECT_FALSE(ways.asks(kBytes - 1));
    EXPECT_EQ(ways.next(kBytes - 1), 0u);
    ways.did(kBytes - 1, microseconds(1));
  }
  try_all(ways, {microseconds(11), microseconds(10)});
  ASSERT_EQ(ways.next(kBytes), 1u);
  EXPECT_EQ(ways.next(kBytes - 1), 0u);
}

TEST(FasterWay, IsFoundAnewAfterARest) {
  FasterWay ways = ways_of({1, 1});
  try_all(ways, {microseconds(11), microseconds(10)});
  EXPECT_EQ(rest(ways), kRestBytes);
  EXPECT_EQ(ways.best(kBytes), 1u) << "what is known is not forgotten meanwhile";
  try_all(ways, {microseconds(10), microseconds(11)});
  EXPECT_EQ(ways.next(kBytes), 0u);
  EXPECT_EQ(rest(ways), 2 * kRestBytes) << "the first way rests as long as it is told";
}

// Whatever ranks find, they try the same at the same time, also if not all could tell the time.
TEST(FasterWay, IsTriedAtTheSameTimeByAll) {
  FasterWay::Options options{.weights = {1, 1},
                             .first_warm_up_bytes = 8 * kBytes,
                             .warm_up_bytes = 4 * kBytes,
                             .rest_bytes = 100 * kBytes,
                             .rest_of_others_bytes = 100 * kBytes};
  FasterWay one(options), other(options);
  bool differed = false;
  for (int work = 0; work < 1000; work++) {
    ASSERT_EQ(one.is_trying(kBytes), other.is_trying(kBytes)) << work;
    if (one.is_trying(kBytes)) {
      ASSERT_EQ(one.next(kBytes), other.next(kBytes)) << work;
    }
    differed |= one.next(kBytes) != other.next(kBytes);
    one.did(kBytes, microseconds(one.next(kBytes) == 0 ? 10 : 11));
    other.did(kBytes,
              work % 5 > 0 ? std::optional<Duration>(microseconds(work % 97)) : std::nullopt);
  }
  EXPECT_TRUE(differed);
}

TEST(FasterWay, StaysAsItIsWhereLittleIsKnown) {
  FasterWay ways = ways_of({1, 1});
  try_all(ways, {microseconds(2), microseconds(1)}, 3);
  EXPECT_EQ(ways.next(kBytes), 0u);
  rest(ways);
  try_all(ways, {microseconds(2), microseconds(1)});
  EXPECT_EQ(ways.next(kBytes), 1u);
}

TEST(FasterWayBySize, IsChosenForEachPowerOfTwo) {
  FasterWayBySize ways;
  FasterWay& little = ways.about(20'000);
  EXPECT_EQ(&ways.about(30'000), &little);
  EXPECT_NE(&ways.about(40'000), &little);
  EXPECT_EQ(little.next(20'000), 0u);
  while (little.is_trying(20'000))
    little.did(20'000, microseconds(little.next(20'000) == 0 ? 3 : 2));
  EXPECT_EQ(little.next(20'000), 1u);
  EXPECT_EQ(ways.about(40'000).next(40'000), 0u);
}

}  // namespace
}  // namespace ringcoll
