#include "topology/spread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "topology/numa.h"

namespace ringcoll {
namespace {

using Cpus = std::vector<int>;

TEST(RoomierCpus, AreThoseThatNobodySitsOn) {
  EXPECT_EQ(roomier_cpus(1, {0, 1, 2, 3}, {1, 3, -1}, {}), (Cpus{0, 2}));
  EXPECT_EQ(roomier_cpus(1, {0, 1}, {0}, {}), Cpus{});
  EXPECT_EQ(roomier_cpus(1, {1}, {}, {}), Cpus{});
}

TEST(RoomierCpus, AreOfTheSameNodeIfThereAreAny) {
  const std::map<int, Cpus> nodes = {{0, {0, 1, 2}}, {1, {3, 4}}, {2, {}}};
  EXPECT_EQ(roomier_cpus(1, {0, 1, 2, 3, 4}, {}, nodes), (Cpus{0, 2}));
  EXPECT_EQ(roomier_cpus(4, {0, 1, 2, 3, 4}, {}, nodes), Cpus{3});
  EXPECT_EQ(roomier_cpus(1, {0, 1, 2, 3, 4}, {0, 2}, nodes), (Cpus{3, 4}));
}

class SpreaderTest : public testing::Test {
 protected:
  void TearDown() override { run_on(cpus_); }

  const Cpus cpus_ = allowed_cpus();
};

TEST_F(SpreaderTest, LeavesTheCpuAndKeepsTheAffinity) {
  constexpr int kTimes = 50;
  int left = 0;
  for (int i = 0; i < kTimes; i++) {
    ASSERT_TRUE(run_on({cpus_[0]}));
    ASSERT_EQ(current_cpu(), cpus_[0]);
    ASSERT_TRUE(run_on(cpus_));
    EXPECT_EQ(Spreader().leave({}), cpus_.size() > 1);
    left += current_cpu() != cpus_[0];
    EXPECT_EQ(allowed_cpus(), cpus_);
  }
  // The kernel may move a thread at any time.
  EXPECT_TRUE(left > kTimes / 2 || cpus_.size() == 1) << left;
}

TEST_F(SpreaderTest, TellsWhereItGoes) {
  ASSERT_TRUE(run_on({cpus_[0]}) && run_on(cpus_));
  int told = -1, here = -1;
  EXPECT_EQ(Spreader().leave({},
                             [&](int cpu) {
                               told = cpu;
                               here = current_cpu();
                             }),
            cpus_.size() > 1);
  if (cpus_.size() == 1) return;
  EXPECT_TRUE(std::ranges::count(cpus_, told) == 1 && told != here) << told << ", from " << here;
  EXPECT_EQ(allowed_cpus(), cpus_);
}

TEST_F(SpreaderTest, StaysWhereAllOthersAreTaken) { EXPECT_FALSE(Spreader().leave(cpus_)); }

TEST_F(SpreaderTest, AThreadThatIsBoundStays) {
  ASSERT_TRUE(run_on({cpus_[0]}));
  EXPECT_FALSE(Spreader().leave({}));
  EXPECT_EQ(allowed_cpus(), Cpus{cpus_[0]});
}

TEST_F(SpreaderTest, RestsBetweenMoves) {
  Spreader spreader;
  bool can = cpus_.size() > 1;
  auto begun = Clock::now();
  EXPECT_EQ(spreader.leave({}), can);
  bool again = spreader.leave({});
  EXPECT_TRUE(!again || Clock::now() - begun >= Spreader::kRest);
  std::this_thread::sleep_for(Spreader::kRest);
  EXPECT_EQ(spreader.leave({}), can);
}

}  // namespace
}  // namespace ringcoll
