// What of a communicator decides how its schedules are chosen.
#include "coll/terrain.h"

#include <gtest/gtest.h>

#include "coll/world_testing.h"

namespace ringcoll {
namespace {

using testing::Member;

TEST(Terrain, OfOneHost) {
  Config config = testing::test_config("shm", "allreduce=ring");
  config.segment_bytes = 12345;
  config.slots = 7;
  testing::run_world(3, config, [&](Member& m) {
    Terrain terrain = terrain_of(m.comm);
    EXPECT_TRUE(terrain.one_domain) << "rows for shared memory are offered";
    EXPECT_EQ(terrain.fabric.crowded, m.comm.topology().crowded());
    EXPECT_EQ(terrain.segment_bytes, config.segment_bytes);
    EXPECT_EQ(terrain.arena_bytes, config.arena_bytes);
    EXPECT_EQ(terrain.slots, config.slots);
    EXPECT_EQ(terrain.algorithm, config.algorithm);
    EXPECT_EQ(terrain.fabric.ranks(), m.size);
    EXPECT_EQ(terrain.fabric.combined_bytes_per_us,
              terrain.fabric.crowded ? kCombinedBytesPerUs : kCombinedInMemoryBytesPerUs);
    EXPECT_EQ(terrain.fabric.groups.front().count(), 1);
  });
}

TEST(Terrain, OfSeveralHosts) {
  testing::run_world(
      5, testing::test_config("auto"),
      [](Member& m) {
        Terrain terrain = terrain_of(m.comm);
        EXPECT_FALSE(terrain.one_domain);
        EXPECT_EQ(terrain.fabric.combined_bytes_per_us, kCombinedBytesPerUs);
        ASSERT_EQ(terrain.fabric.groups.size(), 2u);
        EXPECT_EQ(terrain.fabric.groups[0].count(), 2);
        EXPECT_EQ(terrain.fabric.groups[0].size_of(0), 3) << "in the order of the ring";
        EXPECT_EQ(terrain.fabric.groups[1].count(), 1);
        ASSERT_EQ(terrain.fabric.links.size(), 2u);
        for (int level = 0; level < 2; level++) {
          const LevelCost& cost = m.comm.costs().levels[level];
          const auto& link = terrain.fabric.links[level];
          EXPECT_EQ(link.latency_us, cost.latency_us);
          EXPECT_EQ(link.rank_bytes_per_us, cost.rank_bytes_per_us);
          EXPECT_EQ(link.group_bytes_per_us, cost.group_bytes_per_us);
        }
      },
      [](Rank rank) { return rank % 2 == 0 ? "even" : "odd"; });
}

}  // namespace
}  // namespace ringcoll
