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

// Both ranks are put on one CPU again and again, until one has left; how often they did.
int64_t leave_one_cpu(Member& m, const std::vector<int>& cpus, int rounds) {
  int64_t moves = 0;
  for (int round = 0; round < rounds && moves == 0; round++) {
    EXPECT_TRUE(run_on({cpus[0]}) && run_on(cpus));
    int64_t mine = static_cast<int64_t>(m.comm.channels().cpu_moves());
    rc_buffer buffer{&mine, &moves, 1};
    run(m, call_of(RC_ALLREDUCE, RC_INT64, RC_SUM, {&buffer, 1}));
    EXPECT_EQ(allowed_cpus(), cpus);
  }
  return moves;
}

TEST(RanksOnCpus, MoveApartFromOneOfABusyMachine) {
  auto cpus = allowed_cpus();
  BusyCpus busy(cpus);
  Config config = testing::test_config("shm");
  testing::run_world(2, config, [&](Member& m) {
    EXPECT_EQ(leave_one_cpu(m, cpus, cpus.size() > 1 ? 2000 : 20) > 0, cpus.size() > 1);
  });
  config.spread = false;
  testing::run_world(2, config, [&](Member& m) { EXPECT_EQ(leave_one_cpu(m, cpus, 20), 0); });
}

// Three of four ranks are put on one of two CPUs, again and again, until one of them has left.
int64_t even_out(Member& m, const std::vector<int>& two, int rounds) {
  int64_t moves = 0;
  std::vector<float> in(64 << 10, 1), out(in.size());
  for (int round = 0; round < rounds && moves == 0; round++) {
    EXPECT_TRUE(run_on({two[m.rank == 3]}) && run_on(two));
    rc_buffer large{in.data(), out.data(), static_cast<int64_t>(in.size())};
    run(m, call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&large, 1}));
    EXPECT_EQ(out.back(), 4);
    int64_t mine = static_cast<int64_t>(m.comm.channels().cpu_moves());
    rc_buffer buffer{&mine, &moves, 1};
    run(m, call_of(RC_ALLREDUCE, RC_INT64, RC_SUM, {&buffer, 1}));
    EXPECT_EQ(allowed_cpus(), two);
  }
  return moves;
}

TEST(RanksOnCpus, ThatTheyShareAreAsManyOnEach) {
  auto cpus = allowed_cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "one CPU";
  std::vector<int> two(cpus.begin(), cpus.begin() + 2);
  ASSERT_TRUE(run_on(two));  // and so do the threads that are ranks
  Config config = testing::test_config("shm");
  testing::run_world(4, config, [&](Member& m) { EXPECT_GT(even_out(m, two, 2000), 0); });
  config.spread = false;
  testing::run_world(4, config, [&](Member& m) { EXPECT_EQ(even_out(m, two, 20), 0); });
  EXPECT_TRUE(run_on(cpus));
}

}  // namespace
}  // namespace ringcoll
