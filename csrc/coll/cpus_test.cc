// On which CPUs ranks run that wait for one another.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "coll/world_testing.h"
#include "topology/numa.h"

namespace ringcoll {
namespace {

using testing::call_of;
using testing::Member;
using testing::run;

// A thread on each CPU that never sleeps.
class BusyCpus {
 public:
  explicit BusyCpus(const std::vector<int>& cpus) {
    for (int cpu : cpus)
      threads_.emplace_back([this, cpu] {
        EXPECT_TRUE(run_on({cpu}));
        while (!over_) {
        }
      });
  }
  ~BusyCpus() {
    over_ = true;
    for (auto& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

// A rank is put on `cpu` again and again, until any has left its own; how often all have.
int64_t leave(Member& m, int cpu, const std::vector<int>& cpus, int64_t count, int rounds) {
  std::vector<int64_t> mine(count + 1), all(mine.size());  // ones, and at the end that
  for (int round = 0; round < rounds && all.back() == 0; round++) {
    EXPECT_TRUE(run_on({cpu}) && run_on(cpus));
    mine.assign(mine.size(), 1);
    mine.back() = static_cast<int64_t>(m.comm.channels().cpu_moves());
    rc_buffer buffer{mine.data(), all.data(), count + 1};
    run(m, call_of(RC_ALLREDUCE, RC_INT64, RC_SUM, {&buffer, 1}));
    EXPECT_EQ(all[count - 1], m.size);
    EXPECT_EQ(allowed_cpus(), cpus);
  }
  return all.back();
}

TEST(RanksOnCpus, MoveApartFromOneOfABusyMachine) {
  auto cpus = allowed_cpus();
  BusyCpus busy(cpus);
  Config config = testing::test_config("shm");
  testing::run_world(2, config, [&](Member& m) {
    EXPECT_EQ(leave(m, cpus[0], cpus, 1, cpus.size() > 1 ? 2000 : 20) > 0, cpus.size() > 1);
  });
  config.spread = false;
  testing::run_world(2, config, [&](Member& m) { EXPECT_EQ(leave(m, cpus[0], cpus, 1, 20), 0); });
}

// Three of four ranks are put on one of two CPUs.
TEST(RanksOnCpus, ThatTheyShareAreAsManyOnEach) {
  auto cpus = allowed_cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "one CPU";
  std::vector<int> two(cpus.begin(), cpus.begin() + 2);
  ASSERT_TRUE(run_on(two));  // and so do the threads that are ranks
  constexpr int64_t kCount = 32 << 10;
  auto moves = [&](Member& m, int rounds) {
    return leave(m, two[m.rank == 3], two, kCount, rounds);
  };
  Config config = testing::test_config("shm");
  testing::run_world(4, config, [&](Member& m) { EXPECT_GT(moves(m, 2000), 0); });
  config.spread = false;
  testing::run_world(4, config, [&](Member& m) { EXPECT_EQ(moves(m, 20), 0); });
  EXPECT_TRUE(run_on(cpus));
}

}  // namespace
}  // namespace ringcoll
