// The distance of ranks follows their threads, from call to call.
#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <vector>

#include "coll/world_testing.h"
#include "topology/cpus_testing.h"

namespace ringcoll {
namespace {

using testing::Member;
using testing::run_on;
using State = Distance::State;

class DistanceOfRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cpus_.size() < 2) GTEST_SKIP() << "one CPU";
  }

  void sum(Member& m) {
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    testing::run(m, testing::call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&buffer, 1}));
    EXPECT_EQ(value, static_cast<float>(m.size));
  }
  /// Calls until both ranks know it as it is to be; what it is then.
  Distance wait_for(Member& m, const std::function<bool(const Distance&)>& good) {
    Deadline deadline(seconds(60));
    Distance distance;
    for (bool again = true; again;) {
      for (int i = 0; i < 16; i++) sum(m);
      distance = m.comm.group().distance(1 - m.rank);
      is_good_[m.rank] = good(distance) || deadline.passed();
      both_.arrive_and_wait();
      again = !is_good_[0] || !is_good_[1];
      both_.arrive_and_wait();
    }
    found_[m.rank] = m.comm.group().distance(1 - m.rank);
    both_.arrive_and_wait();
    EXPECT_EQ(found_[0].state, found_[1].state);
    EXPECT_EQ(found_[0].round_trip_ns, found_[1].round_trip_ns);
    EXPECT_TRUE(good(distance)) << name_of(distance.state);
    both_.arrive_and_wait();
    return distance;
  }

  const std::vector<int> cpus_ = allowed_cpus();
  std::barrier<> both_{2};
  bool is_good_[2] = {};
  Distance found_[2];
};

bool is_measured(const Distance& distance) { return distance.round_trip_ns > 0; }
bool is_one_core(const Distance& distance) { return distance.state == State::kOneCore; }

TEST_F(DistanceOfRanks, FollowsTheirThreads) {
  testing::run_world(2, testing::test_config("shm"), [this](Member& m) {
    run_on({m.rank == 0 ? cpus_.front() : cpus_.back()});
    Distance apart = wait_for(m, is_measured);
    EXPECT_EQ(apart.state,
              apart.round_trip_ns < Distance::kMostNearNs ? State::kNear : State::kFar);
    if (m.rank == 1) run_on({cpus_.front()});
    Distance together = wait_for(m, is_one_core);
    EXPECT_EQ(together.round_trip_ns, 0);
    run_on({m.rank == 0 ? cpus_.back() : cpus_.front()});
    wait_for(m, is_measured);
    run_on(cpus_);
  });
}

// Calls that end late on one rank: a root that only sends is ahead of the others.
TEST_F(DistanceOfRanks, IsLookedAtWithoutWaiting) {
  testing::run_world(2, testing::test_config("shm"), [](Member& m) {
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    for (int i = 0; i < 10'000; i++)
      testing::run(m, testing::call_of(RC_BROADCAST, RC_FLOAT32, RC_SUM, {&buffer, 1}));
  });
}

}  // namespace
}  // namespace ringcoll
