#include "coll/copy_ways.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ringcoll
