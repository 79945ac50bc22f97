// Bounded staleness, quorums, and workers that come and go.
#include "table/clocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/error_testing.h"

namespace ringcoll {
namespace {

using testing::error_of;

void tick(Clocks& clocks, int64_t worker, int64_t clock) {
  clocks.check_clock(worker, clock);
  clocks.tick(worker, clock);
  clocks.complete();
}

Clocks make(std::optional<int64_t> staleness, const std::vector<int64_t>& workers,
            std::optional<int64_t> quorum = std::nullopt) {
  Clocks clocks("t", staleness, quorum);
  for (const int64_t worker : workers) clocks.join(worker);
  return clocks;
}

TEST(Clocks, AreCompleteWhenAllWorkersHaveFinished) {
  Clocks clocks = make(0, {0, 1, 2});
  tick(clocks, 1, 0);
  tick(clocks, 0, 0);
  EXPECT_EQ(clocks.current(), 0);
  tick(clocks, 0, 1);
  tick(clocks, 2, 0);
  EXPECT_EQ(clocks.current(), 1);
  tick(clocks, 2, 0);  // once more
  tick(clocks, 0, 0);
  EXPECT_EQ(clocks.clock_of(2), 1);
  EXPECT_EQ(clocks.clock_of(0), 2);
}

TEST(Clocks, APullWaitsForTheClocksThatItMayNotLack) {
  Clocks strict = make(0, {0, 1}), loose = make(2, {0, 1}), free = make(std::nullopt, {0, 1});
  EXPECT_EQ(strict.waits_for(0), std::nullopt);
  EXPECT_EQ(strict.waits_for(1), 0);
  EXPECT_EQ(loose.waits_for(2), std::nullopt);
  EXPECT_EQ(loose.waits_for(3), 0);
  EXPECT_EQ(loose.waits_for(7), 4);
  EXPECT_EQ(free.waits_for(1000), std::nullopt);
  EXPECT_EQ(error_of([&] { (void)free.waits_for(-1); }).code(), Code::kInvalidArgument);
}

TEST(Clocks, StalenessIsNeverExceeded) {
  for (int64_t staleness = 0; staleness < 4; staleness++) {
    Clocks clocks = make(staleness, {0, 1, 2, 3});
    std::mt19937_64 random(static_cast<uint64_t>(staleness));
    std::vector<int64_t> clock(4, 0);  // of each worker
    int64_t widest = 0;
    for (int step = 0; step < 4000; step++) {
      // Worker 3 is slow, so the others run into the limit.
      const size_t worker = random() % 40 == 0 ? 3 : random() % 3;
      if (clocks.waits_for(clock[worker])) continue;
      for (const int64_t other : clock) {
        ASSERT_LE(clock[worker] - other, staleness);
        widest = std::max(widest, clock[worker] - other);
      }
      tick(clocks, static_cast<int64_t>(worker), clock[worker]);
      clock[worker]++;
    }
    EXPECT_EQ(widest, staleness);  // and it is used
    EXPECT_GT(*std::ranges::min_element(clock), 10);
  }
}

TEST(Clocks, AWorkerThatLeavesNoLongerCounts) {
  Clocks clocks = make(0, {0, 1, 2});
  tick(clocks, 0, 0);
  tick(clocks, 1, 0);
  clocks.leave(2);
  clocks.complete();
  EXPECT_EQ(clocks.current(), 1);
  clocks.leave(0);
  clocks.leave(1);
  clocks.complete();
  EXPECT_EQ(clocks.current(), 1);  // nobody finishes anything
}

TEST(Clocks, AWorkerThatLeavesMayBeFarBehind) {
  Clocks clocks = make(0, {});
  clocks.restore({{1, int64_t{1} << 60}, {2, 0}}, 0, -1);
  clocks.complete();
  EXPECT_EQ(clocks.current(), 0);
  clocks.leave(2);
  clocks.complete();
  EXPECT_EQ(clocks.current(), int64_t{1} << 60);
}

TEST(Clocks, AWorkerJoinsAtTheCurrentClock) {
  Clocks clocks = make(1, {0});
  tick(clocks, 0, 0);
  tick(clocks, 0, 1);
  clocks.join(5);
  EXPECT_EQ(clocks.clock_of(5), 2);
  clocks.join(5);  // once more
  tick(clocks, 0, 2);
  EXPECT_EQ(clocks.current(), 2);
  tick(clocks, 5, 2);
  EXPECT_EQ(clocks.current(), 3);
}

TEST(Clocks, AQuorumIsEnoughAfterTheGrace) {
  Clocks clocks = make(0, {0, 1, 2}, 2);
  clocks.end_grace(0);
  clocks.complete();
  tick(clocks, 0, 0);
  EXPECT_EQ(clocks.current(), 0);
  tick(clocks, 1, 0);  // the grace ended before
  EXPECT_EQ(clocks.current(), 1);
  tick(clocks, 0, 1);
  tick(clocks, 1, 1);
  EXPECT_EQ(clocks.current(), 1);  // the grace of this clock has not ended
  clocks.end_grace(0);             // late news
  clocks.complete();
  EXPECT_EQ(clocks.current(), 1);
  clocks.end_grace(1);
  clocks.complete();
  EXPECT_EQ(clocks.current(), 2);
}

TEST(Clocks, AWorkerThatWasLeftBehindGoesOnAtTheCurrentClock) {
  Clocks clocks = make(0, {0, 1}, 1);
  for (int64_t clock = 0; clock < 5; clock++) {
    tick(clocks, 0, clock);
    clocks.end_grace(clock);
    clocks.complete();
  }
  EXPECT_EQ(clocks.current(), 5);
  EXPECT_EQ(clocks.clock_of(1), 0);
  tick(clocks, 1, 5);
  tick(clocks, 0, 5);
  EXPECT_EQ(clocks.current(), 6);
}

TEST(Clocks, RefuseTheClocksOfOthers) {
  Clocks clocks = make(0, {4});
  EXPECT_STREQ(error_of([&] { clocks.check_clock(3, 0); }).what(),
               "table t: 3 is no worker: it must join first");
  EXPECT_STREQ(error_of([&] { clocks.check_clock(4, 1); }).what(),
               "table t: worker 4 is at clock 0, and names clock 1: it must be from 0 to 0");
  EXPECT_EQ(error_of([&] { clocks.check_clock(4, -1); }).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace ringcoll
