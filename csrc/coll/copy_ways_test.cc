#include "coll/copy_ways.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ringcoll {
namespace {

using std::chrono::microseconds;

constexpr uint64_t kBytes = 32 << 10;

TEST(CopyWays, EndsAreChosenForEachCollectiveAndSize) {
  CopyWays ways(true);
  FasterWay& little = ways.ends_of(RC_ALLGATHER, kBytes);
  EXPECT_NE(&ways.ends_of(RC_ALLGATHER, 2 * kBytes), &little);
  EXPECT_NE(&ways.ends_of(RC_BROADCAST, kBytes), &little);
  EXPECT_EQ(little.next(kBytes), CopyWays::kFromCaller);
}

// A broadcast of all parameters at the start of a job, say.
TEST(CopyWays, EndsOfLongCallsAreKnownAfterFew) {
  constexpr uint64_t kLong = 200 << 20;
  CopyWays ways(true);
  FasterWay& ends = ways.ends_of(RC_BROADCAST, kLong);
  for (size_t call = 0; call < 2 * (FasterWay::kTrials + 6) && ends.is_trying(kLong); call++)
    ends.did(kLong, microseconds(ends.next(kLong) == CopyWays::kFromCaller ? 20'000 : 10'000));
  EXPECT_FALSE(ends.is_trying(kLong));
  EXPECT_EQ(ends.next(kLong), CopyWays::kFromArena);
}

// What packing takes says nothing until its own ways have been tried.
TEST(CopyWays, EndsAreTimedWhenWaysToPackAreKnown) {
  for (uint64_t bytes : {64 << 10, 512 << 10}) {
    CopyWays ways(true);
    FasterWay& ends = ways.ends_of(RC_BROADCAST, bytes);
    size_t timed = 0;
    for (int call = 0; call < 10'000 && ends.is_trying(bytes);
         call++, ends.did(bytes, microseconds(10))) {
      if (ends.asks(bytes) && ends.next(bytes) == CopyWays::kFromArena) {
        timed++;
        EXPECT_FALSE(ways.pack_from_memory.is_trying(bytes)) << bytes;
        EXPECT_FALSE(ways.pack.is_trying(bytes)) << bytes;
      }
      if (ends.next(bytes) == CopyWays::kFromCaller) continue;
      ways.pack_from_memory.did(bytes, microseconds(10));
      ways.pack.did(bytes, microseconds(10));
    }
    EXPECT_EQ(timed, FasterWay::kTrials) << bytes;
  }
}

TEST(CopyWays, WhatTheKernelOrACardReadsIsNotStoredPastTheCaches) {
  CopyWays network(false);
  FasterWay& pack = network.pack;
  for (size_t i = 0; i < FasterWay::kTrials; i++) pack.did(kBytes, microseconds(10));
  EXPECT_FALSE(pack.asks(kBytes));
  EXPECT_EQ(pack.next(kBytes), CopyWays::kThroughCaches);
  FasterWay& fetch = network.pack_from_memory;
  for (size_t i = 0; i < 2 * FasterWay::kTrials; i++)
    fetch.did(kBytes, microseconds(fetch.next(kBytes) == CopyWays::kInOrder ? 10 : 9));
  EXPECT_EQ(fetch.next(kBytes), CopyWays::kFromFourPages);
}

/// The way that is found when each takes so long for a MiB, of which a few warm up.
size_t found(FasterWay ways, const std::vector<microseconds>& times) {
  constexpr uint64_t kMiB = 1 << 20;
  for (int i = 0; i < 100; i++) ways.did(kMiB, times.at(ways.next(kMiB)));
  return ways.best(kMiB);
}

// The first two cost what they take, and no more.
TEST(CopyWays, FetchesByTheFasterOfTwoThroughTheCaches) {
  for (bool by_cores : {true, false}) {
    for (CopyWays::Fetch faster : {CopyWays::kInOrder, CopyWays::kFromFourPages}) {
      std::vector<microseconds> times(by_cores ? 3 : 2, microseconds(100));
      times[faster] = microseconds(80);
      EXPECT_EQ(found(CopyWays(by_cores).pack_from_memory, times), faster);
      times.resize(2);
      EXPECT_EQ(found(CopyWays(by_cores).combine_from_memory, times), faster);
    }
  }
}

// The reader pays, too.
TEST(CopyWays, StoresPastTheCachesWhereThatIsManyTimesFaster) {
  auto fetch = [](int past_us) {
    return found(CopyWays(true).pack_from_memory,
                 {microseconds(100), microseconds(110), microseconds(past_us)});
  };
  EXPECT_EQ(fetch(60), CopyWays::kInOrder);
  EXPECT_EQ(fetch(40), CopyWays::kInOrderPastCaches);
  auto store = [](int past_us) {
    return found(CopyWays(true).pack, {microseconds(100), microseconds(past_us)});
  };
  EXPECT_EQ(store(40), CopyWays::kThroughCaches);
  EXPECT_EQ(store(25), CopyWays::kPastCaches);
}

}  // namespace
}  // namespace ringcoll
