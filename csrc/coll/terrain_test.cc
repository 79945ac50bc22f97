// What of a communicator decides how its schedules are chosen.
#include "coll/terrain.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "coll/world_testing.h"

namespace ringcoll {
namespace {

using testing::Member;

// Of this process's shared memory, what is in huge pages (proc_pid_smaps(5)).
int64_t huge_kib() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "ShmemPmdMapped:" && file >> kib) return kib;
  }
  ADD_FAILURE() << "the kernel does not say";
  return 0;
}

TEST(Terrain, OfOneHost) {
  Config config = testing::test_config("shm", "allreduce=ring");
  config.segment_bytes = 12345;
  config.slots = 7;
  testing::run_world(3, config, [&](Member& m) {
    Terrain terrain = terrain_of(m.comm);
    EXPECT_TRUE(terrain.one_domain) << "rows for shared memory are offered";
    EXPECT_EQ(terrain.oversubscribed, m.comm.group().oversubscribed());
    EXPECT_EQ(terrain.fabric.crowded, m.comm.group().oversubscribed());
    EXPECT_EQ(terrain.segment_bytes, config.segment_bytes);
    EXPECT_EQ(terrain.arena_bytes, config.arena_bytes);
    EXPECT_EQ(terrain.slots, config.slots);
    EXPECT_EQ(terrain.algorithm, config.algorithm);
    EXPECT_EQ(terrain.fabric.ranks(), m.size);
    EXPECT_EQ(terrain.fabric.combined_bytes_per_us,
              terrain.oversubscribed ? kCombinedBytesPerUs : kCombinedInMemoryBytesPerUs);
    EXPECT_EQ(terrain.fabric.groups.front().count(), 1);
  });
}

// The kernel takes milliseconds to collapse memory into one while they poll.
TEST(Terrain, OfRanksThatShareCpusHasNoHugePages) {
  std::string given;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), given);
  if (given.find("[never]") == std::string::npos)
    GTEST_SKIP() << "this kernel gives huge pages by itself: " << given;
  int64_t before = huge_kib();
  Config config = testing::test_config("shm");
  config.huge_pages = true;
  auto size = static_cast<Rank>(std::thread::hardware_concurrency() + 1);
  testing::run_world(size, config, [&](Member& m) {
    ASSERT_TRUE(m.comm.group().oversubscribed());
    std::vector<float> values(size_t{1} << 20);
    std::vector<rc_buffer> buffers{{values.data(), values.data(), int64_t{1} << 20}};
    rc_call call = testing::call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, buffers);
    for (int i = 0; i < 3; i++) testing::run(m, call);
    EXPECT_EQ(huge_kib(), before);
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
