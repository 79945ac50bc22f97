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
  return FasterWay({std::move(weights), kBytes, warm_up_bytes, 2 * kRestBytes, kRestBytes});
}

/// Works until it has settled, each way as fast as is said. Returns the way that does the work.
size_t settle(FasterWay& ways, const std::vector<Duration>& times) {
  for (size_t i = 0; i < times.size() * FasterWay::kTrials; i++) {
    EXPECT_TRUE(ways.asks(kBytes));
    ways.did(kBytes, times[ways.next(kBytes)]);
  }
  EXPECT_FALSE(ways.asks(kBytes));
  return ways.next(kBytes);
}

TEST(FasterWay, IsTheOneWithTheBestMedian) {
  FasterWay one = ways_of({1, 1}), other = ways_of({1, 1}), third = ways_of({1, 1, 1});
  EXPECT_EQ(settle(one, {microseconds(10), microseconds(11)}), 0u);
  EXPECT_EQ(settle(other, {microseconds(11), microseconds(10)}), 1u);
  EXPECT_EQ(settle(third, {microseconds(11), microseconds(10), microseconds(9)}), 2u);
}

TEST(FasterWay, TriesOneAfterTheOtherAndTimesItWhenItIsWarm) {
  FasterWay ways = ways_of({1, 1}, 3 * kBytes);
  for (size_t way : {0, 1}) {
    for (int i = 0; i < 3; i++) {
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

TEST(FasterWay, AWayThatCostsMoreElsewhereHasToBeMuchFaster) {
  FasterWay little = ways_of({1, 1.3}), much = ways_of({1, 1.3});
  EXPECT_EQ(settle(little, {microseconds(10), microseconds(8)}), 0u);
  EXPECT_EQ(settle(much, {microseconds(10), microseconds(7)}), 1u);
}

TEST(FasterWay, WhatIsShortDoesNotCountAndGoesTheFirstWay) {
  FasterWay ways = ways_of({1, 1});
  for (size_t i = 0; i < 100; i++) {
    EXPECT_FALSE(ways.asks(kBytes - 1));
    EXPECT_EQ(ways.next(kBytes - 1), 0u);
    ways.did(kBytes - 1, microseconds(1));
  }
  ASSERT_EQ(settle(ways, {microseconds(11), microseconds(10)}), 1u);
  EXPECT_EQ(ways.next(kBytes - 1), 0u);
}

/// Works in the way that was found, which takes so long, at most so often; whether all ways were
/// tried again meanwhile.
bool is_found_anew(FasterWay& ways, Duration time, uint64_t works) {
  size_t found = ways.next(kBytes);
  for (uint64_t i = 0; i < works; i++) {
    ways.did(kBytes, ways.asks(kBytes) ? time : Duration());
    if (ways.asks(kBytes) && ways.next(kBytes) != found) return true;
  }
  return false;
}

TEST(FasterWay, IsFoundAnewAfterARest) {
  FasterWay ways = ways_of({1, 1});
  ASSERT_EQ(settle(ways, {microseconds(11), microseconds(10)}), 1u);
  EXPECT_FALSE(is_found_anew(ways, microseconds(10), kRestBytes / kBytes - 1));
  EXPECT_TRUE(is_found_anew(ways, microseconds(10), 1));
  EXPECT_EQ(ways.best(kBytes), 1u) << "what is known is not forgotten meanwhile";
  EXPECT_EQ(settle(ways, {microseconds(10), microseconds(11)}), 0u);
  EXPECT_FALSE(is_found_anew(ways, microseconds(10), 2 * kRestBytes / kBytes - 1));
  ways.did(kBytes, {});
  EXPECT_TRUE(ways.asks(kBytes)) << "the first way rests as long as it is told";
}

TEST(FasterWay, IsFoundAnewWhenItsCostHasChanged) {
  constexpr uint64_t kSoon = (FasterWay::kChanged + 1) * FasterWay::kCheckEvery;
  for (auto now : {microseconds(21), microseconds(4)}) {
    FasterWay ways = ways_of({1, 1});
    ASSERT_EQ(settle(ways, {microseconds(11), microseconds(10)}), 1u);
    EXPECT_TRUE(is_found_anew(ways, now, kSoon));
  }
}

TEST(FasterWay, IsFoundAnewMoreRarelyWhereNothingComesOfIt) {
  constexpr uint64_t kSoon = (FasterWay::kChanged + 1) * FasterWay::kCheckEvery;
  FasterWay ways = ways_of({1, 1});
  ASSERT_EQ(settle(ways, {microseconds(11), microseconds(10)}), 1u);
  ASSERT_TRUE(is_found_anew(ways, microseconds(30), kSoon));
  ASSERT_EQ(settle(ways, {microseconds(11), microseconds(10)}), 1u);
  EXPECT_FALSE(is_found_anew(ways, microseconds(30), kSoon));
  EXPECT_TRUE(is_found_anew(ways, microseconds(30), kSoon));
}

TEST(FasterWay, AFewWorksThatTookLongChangeNothing) {
  FasterWay ways = ways_of({1, 1});
  ASSERT_EQ(settle(ways, {microseconds(11), microseconds(10)}), 1u);
  for (int i = 0; i < 20; i++) {
    EXPECT_FALSE(is_found_anew(ways, microseconds(100), 2 * FasterWay::kCheckEvery));
    EXPECT_FALSE(is_found_anew(ways, microseconds(10), FasterWay::kCheckEvery));
  }
}

constexpr FasterWayInStep::Options kShort{
    .first_warm_up_bytes = 8 * kBytes, .warm_up_bytes = 4 * kBytes, .rest_bytes = 100 * kBytes};

/// Works until no way is tried, each as fast as is said, of which only every `known`-th tells.
/// Returns how many works that took.
int try_both(FasterWayInStep& ways, const std::vector<Duration>& times, int known = 1,
             uint64_t bytes = kBytes) {
  int works = 0;
  for (; ways.is_trying(); works++) {
    std::optional<Duration> time;
    if (ways.asks() && works % known == 0) time = times[ways.next()];
    ways.did(bytes, time);
  }
  return works;
}

void rest(FasterWayInStep& ways) {
  while (!ways.is_trying()) {
    EXPECT_FALSE(ways.asks());
    ways.did(kBytes, {});
  }
}

TEST(FasterWayInStep, IsTheOneThatUsuallyTakesLess) {
  FasterWayInStep one(kShort), other(kShort);
  try_both(one, {microseconds(10), microseconds(11)});
  EXPECT_EQ(one.next(), 0u);
  try_both(other, {microseconds(11), microseconds(10)});
  EXPECT_EQ(other.next(), 1u);
  rest(other);
  try_both(other, {microseconds(10), microseconds(11)});
  EXPECT_EQ(other.next(), 0u);
}

// By the median the first would be the faster one.
TEST(FasterWayInStep, CountsShortWorksAndLong) {
  FasterWayInStep ways(kShort);
  for (int work = 0; ways.is_trying(); work++) {
    bool first = ways.next() == 0, stopped = work % FasterWayInStep::kTrials == 3;
    bool waits_for_nothing = work % FasterWayInStep::kTrials < 9;
    ways.did(kBytes, microseconds(first ? (waits_for_nothing ? 5 : 40) : stopped ? 10'000 : 12));
  }
  EXPECT_EQ(ways.next(), 1u);
}

// Whatever ranks find, they try the same at the same time, also if not all could tell the time.
TEST(FasterWayInStep, IsTriedAtTheSameTimeByAll) {
  FasterWayInStep one(kShort), other(kShort);
  bool differed = false;
  for (int work = 0; work < 1000; work++) {
    ASSERT_EQ(one.is_trying(), other.is_trying()) << work;
    if (one.is_trying()) {
      ASSERT_EQ(one.next(), other.next()) << work;
    }
    differed |= one.next() != other.next();
    one.did(kBytes, microseconds(one.next() == 0 ? 10 : 11));
    other.did(kBytes,
              work % 5 > 0 ? std::optional<Duration>(microseconds(work % 97)) : std::nullopt);
  }
  EXPECT_TRUE(differed);
}

TEST(FasterWayInStep, WarmsUpLongerTheFirstTime) {
  FasterWayInStep ways(kShort);
  constexpr int kTimed = 2 * FasterWayInStep::kTrials;
  EXPECT_EQ(try_both(ways, {microseconds(1), microseconds(2)}), 2 * 8 + kTimed);
  rest(ways);
  EXPECT_EQ(try_both(ways, {microseconds(1), microseconds(2)}), 2 * 4 + kTimed);
}

TEST(FasterWayInStep, StaysAsItIsWhereLittleIsKnown) {
  FasterWayInStep ways(kShort);
  try_both(ways, {microseconds(2), microseconds(1)}, 3);
  EXPECT_EQ(ways.next(), 0u);
  rest(ways);
  try_both(ways, {microseconds(2), microseconds(1)});
  EXPECT_EQ(ways.next(), 1u);
}

TEST(BySize, IsChosenForEachPowerOfTwo) {
  BySize<FasterWay> ways(FasterWay::of_two);
  FasterWay& little = ways.about(20'000);
  EXPECT_EQ(&ways.about(30'000), &little);
  EXPECT_NE(&ways.about(40'000), &little);
  EXPECT_EQ(little.next(20'000), 0u);
  for (int call = 0; call < 1000; call++)
    little.did(20'000, microseconds(little.next(20'000) == 0 ? 3 : 2));
  EXPECT_EQ(little.next(20'000), 1u);
  EXPECT_EQ(ways.about(40'000).next(40'000), 0u);
}

}  // namespace
}  // namespace ringcoll
