#include "base/interruption.h"

#include <gtest/gtest.h>

#include <thread>

namespace ringcoll {
namespace {

// Waits until the caller has been asked, or long enough for that to happen many times.
template <typename Asked>
void look_until(Asked&& asked) {
  const auto end = Clock::now() + 50 * Interruption::kEvery;
  while (!asked() && Clock::now() < end) Interruption::look();
}

TEST(Interruption, AThreadWithoutOneIsNotWatched) {
  EXPECT_FALSE(Interruption::watches());
  EXPECT_FALSE(Interruption::is_due());
  EXPECT_FALSE(Interruption::has_ended());
  Interruption::look();
  Interruption mine([] { return false; }, [] {});
  EXPECT_TRUE(Interruption::watches());
  std::thread([] { EXPECT_FALSE(Interruption::watches()); }).join();
}

TEST(Interruption, AsksNowAndThenUntilTheCallerEndsTheCall) {
  int asked = 0, ended = 0;
  Interruption mine([&] { return ++asked == 3; }, [&] { ended++; });
  const auto begin = Clock::now();
  look_until([&] { return ended > 0; });
  EXPECT_EQ(asked, 3);
  EXPECT_GE(Clock::now() - begin, 3 * Interruption::kEvery);
  EXPECT_TRUE(Interruption::has_ended());
  EXPECT_FALSE(Interruption::watches());
  const auto later = Clock::now() + 2 * Interruption::kEvery;
  while (Clock::now() < later) Interruption::look();
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(ended, 1);
}

// The time begins with the first wait, and a call that has taken long before is not asked at once.
TEST(Interruption, IsNotDueWhenTheFirstWaitBegins) {
  Interruption mine([] { return true; }, [] {});
  std::this_thread::sleep_for(2 * Interruption::kEvery);
  EXPECT_FALSE(Interruption::is_due());
  std::this_thread::sleep_for(Interruption::kEvery);
  EXPECT_TRUE(Interruption::is_due());
}

TEST(Interruption, WhatTheCallerDoesWhenItIsAskedIsNoPartOfTheCall) {
  int asked = 0;
  bool watched = true, inner_watched = false, outer_is_back = false;
  {
    Interruption outer(
        [&] {
          watched = Interruption::watches();
          Interruption inner([] { return true; }, [] {});
          inner_watched = Interruption::watches();
          asked++;
          return false;
        },
        [] {});
    look_until([&] { return asked > 0; });
    outer_is_back = Interruption::watches();
  }
  EXPECT_FALSE(watched);
  EXPECT_TRUE(inner_watched);
  EXPECT_TRUE(outer_is_back);
  EXPECT_FALSE(Interruption::watches());
}

}  // namespace
}  // namespace ringcoll
