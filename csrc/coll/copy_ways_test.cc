#include "coll/copy_ways.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ringcoll {
namespace {

using std::chrono::microseconds;

/// The way that is found when each takes so long for a MiB.
size_t found(FasterWay ways, const std::vector<microseconds>& times) {
  constexpr uint64_t kBytes = 1 << 20;
  for (int i = 0; i < 64; i++) ways.did(kBytes, times.at(ways.next(kBytes)));
  return ways.best(kBytes);
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

// A card or the kernel reads memory, or times say who was run when.
TEST(CopyWays, StoresThroughTheCachesWhereNoCoreOfItsOwnReads) {
  EXPECT_EQ(found(CopyWays(false).pack, {microseconds(100)}), CopyWays::kThroughCaches);
}

}  // namespace
}  // namespace ringcoll
