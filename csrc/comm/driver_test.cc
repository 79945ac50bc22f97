// Threads that wait for things which are over one after the other, and whoever drives.
#include "comm/driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace ringcoll {
namespace {

using std::chrono::microseconds, std::chrono::milliseconds;

/// Over when so many units of work have been done.
struct Goal final : Driver::Awaited {
  bool is_over() const override { return over; }
  int at = 0;
  bool over = false;
  std::thread::id reached_by;
};

/// Work in units: `allowed` of them can be done, each by whoever drives.
class Units final : public Driver::Work {
 public:
  ~Units() override { close(); }
  void close() {
    auto lock = driver.enter();
    if (driver.is_closing()) return;
    driver.close(lock, [this] {
      for (Goal* goal : goals) goal->over = true;
      driver.wake_those_over();
    });
  }
  /// Has to be done whether somebody waits or not.
  void add(int units) {
    auto lock = driver.enter();
    driver.make_thread();
    wanted += units;
    driver.call_thread();
  }
  bool wait(int at, Driver::Limit limit = {}, std::thread::id* by = nullptr) {
    auto lock = driver.enter();
    Goal goal;
    goal.at = at;
    goal.over = done >= at;
    goals.insert(&goal);
    bool over = driver.wait(lock, goal, limit);
    goals.erase(&goal);
    if (by) *by = goal.reached_by;
    return over;
  }

  size_t waiters() {
    auto lock = driver.enter();
    return goals.size();
  }

  bool has_work() const override { return done < wanted; }
  void drive(Driver::Lock& lock, Driver::Awaited* awaited, Driver::Limit limit) override {
    EXPECT_EQ(driving++, 0) << "two threads drive";
    drives++;
    while (!driver.enough() && !(limit && Clock::now() >= *limit) && (awaited || has_work())) {
      if (blocks && done < allowed && !driver.may_block(limit.has_value())) break;
      lock.unlock();
      std::this_thread::sleep_for(microseconds(10));
      lock.lock();
      if (done < allowed) step();
    }
    driving--;
    driver.let_others_in(lock);
  }
  void wake() override {}

  std::atomic<int> allowed = 1 << 30;
  std::atomic<bool> blocks = false;
  std::atomic<int> drives = 0;
  std::atomic<int> done = 0, wanted = 0;
  Driver driver{*this, "ringcoll-test"};

 private:
  void step() {
    done++;
    for (Goal* goal : goals)
      if (!goal->over && done >= goal->at)
        goal->over = true, goal->reached_by = std::this_thread::get_id();
    driver.wake_those_over();
  }

  std::set<Goal*> goals;
  std::atomic<int> driving = 0;
};

bool soon(const auto& happened) {
  for (int i = 0; i < 3000; i++) {
    if (happened()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

TEST(Driver, WhoWaitsDrives) {
  Units units;
  std::thread::id by;
  EXPECT_TRUE(units.wait(5, {}, &by));
  EXPECT_EQ(by, std::this_thread::get_id());
  EXPECT_EQ(units.drives, 1);
  EXPECT_TRUE(units.wait(5)) << "at once";
  EXPECT_EQ(units.drives, 1);
}

TEST(Driver, WhatNobodyWaitsForIsDoneByTheThreadOfTheLibrary) {
  Units units;
  for (int wanted : {3, 6, 9}) {  // it has slept meanwhile
    units.add(3);
    EXPECT_TRUE(soon([&] {
      auto lock = units.driver.enter();
      return units.done == wanted;
    }));
    std::this_thread::sleep_for(milliseconds(20));
  }
}

TEST(Driver, TheThreadOfTheLibraryLeavesTheRoleToWhoWaits) {
  Units units;
  units.allowed = 0;
  units.add(3);
  ASSERT_TRUE(soon([&] { return units.drives > 0; }));
  for (Driver::Limit limit :
       {Driver::Limit(), Driver::Limit(Clock::now() + std::chrono::hours(1))}) {
    std::thread::id by;
    std::thread waiter([&, limit] {
      EXPECT_TRUE(units.wait(limit ? 2 : 1, limit, &by));
      EXPECT_EQ(by, std::this_thread::get_id());
    });
    std::this_thread::sleep_for(milliseconds(20));
    units.allowed++;
    waiter.join();
  }
}

TEST(Driver, ALimitEndsAWait) {
  Units units;
  units.allowed = 0;
  std::thread other([&] { EXPECT_TRUE(units.wait(1)); });
  for (int i = 0; i < 20; i++) {  // asleep, or driving
    auto limit = Clock::now() + milliseconds(2);
    EXPECT_FALSE(units.wait(1, limit));
    EXPECT_GE(Clock::now(), limit);
  }
  units.allowed = 1;
  other.join();
}

// The one with a limit sleeps meanwhile, and drives afterwards.
TEST(Driver, WhatBlocksIsLeftToAThreadWithoutALimit) {
  Units units;
  units.blocks = true;
  units.add(1);
  std::thread::id by;
  EXPECT_TRUE(units.wait(1, Clock::now() + std::chrono::hours(1), &by));
  EXPECT_NE(by, std::this_thread::get_id());
  units.blocks = false;
  EXPECT_TRUE(units.wait(2, Clock::now() + std::chrono::hours(1), &by));
  EXPECT_EQ(by, std::this_thread::get_id());
}

TEST(Driver, WhoTakesTheRoleWithoutTheLockHandsItOver) {
  Units units;
  for (int i = 0; i < 50; i++) {
    ASSERT_TRUE(soon([&] { return units.driver.try_take(); }));
    EXPECT_FALSE(units.driver.try_take());
    int at = 0;
    {
      auto lock = units.driver.enter();
      at = ++units.wanted;
    }
    std::thread waiter([&] { EXPECT_TRUE(units.wait(at)); });
    if (i % 2) std::this_thread::sleep_for(microseconds(i * 10));
    units.driver.release();
    waiter.join();
  }
}

TEST(Driver, ClosingEndsAllWaits) {
  for (int i = 0; i < 20; i++) {
    auto units = std::make_unique<Units>();
    units->allowed = 0;
    units->add(1);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; t++)
      threads.emplace_back([&, t] {
        units->wait(1, t == 0 ? Driver::Limit(Clock::now() + std::chrono::hours(1)) : std::nullopt);
      });
    ASSERT_TRUE(soon([&] { return units->waiters() == 3; }));
    std::this_thread::sleep_for(microseconds(i * 50));
    units->close();
    for (auto& thread : threads) thread.join();
  }
}

TEST(Driver, ThreadsInAnyOrder) {
  Units units;
  std::atomic<int> at = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; t++)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 150; i++) {
        int mine = ++at;
        switch (random() % 4) {
          case 0:
            units.add(1);
            break;
          case 1:
            if (units.driver.try_take()) units.driver.release();
            break;
          case 2:
            units.wait(mine, Clock::now() + microseconds(random() % 300));
            break;
          default:
            EXPECT_TRUE(units.wait(mine));
        }
        units.blocks = random() % 8 == 0;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(units.wait(at));
}

}  // namespace
}  // namespace ringcoll
