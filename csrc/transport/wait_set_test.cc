// Waits without any link: who wakes them, and when they end.
#include "transport/wait_set.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <thread>

#include "base/error.h"

namespace ringcoll {
namespace {

using std::chrono::milliseconds;

/// Whether it ended before its limit.
bool ends_early(WaitSet& set, Duration limit, const std::function<bool()>& look = {}) {
  Deadline over(limit);
  set.sleep(limit, look);
  return !over.passed();
}

TEST(WaitSet, SleepsUntilItsLimit) {
  Bells bells;
  WaitSet set(bells);
  EXPECT_FALSE(ends_early(set, milliseconds(20)));
  set.sleep(Duration::zero());
  set.sleep(Duration(-5));
}

TEST(WaitSet, AWakeThatCameBeforeEndsOneSleep) {
  Bells bells;
  WaitSet set(bells);
  for (int i = 0; i < 100; i++) set.wake();
  EXPECT_TRUE(set.woken());
  EXPECT_TRUE(ends_early(set, seconds(20)));
  EXPECT_FALSE(set.woken());
  EXPECT_FALSE(ends_early(set, milliseconds(20)));
}

TEST(WaitSet, LooksOnceMoreBeforeItSleeps) {
  Bells bells;
  WaitSet set(bells);
  EXPECT_TRUE(ends_early(set, seconds(20), [] { return true; }));
  EXPECT_TRUE(ends_early(set, seconds(20), [&] { return set.wake(), false; }));
  EXPECT_THROW(set.sleep(seconds(20), []() -> bool { throw Error(Code::kAborted, ""); }), Error);
  EXPECT_FALSE(ends_early(set, milliseconds(20)));
}

// Of sets that have their bells from one place.
TEST(WaitSet, IsWokenByNoWakeOfAnother) {
  Bells bells;
  WaitSet one(bells), other(bells);
  auto sleeper = std::async(std::launch::async, [&] { return ends_early(one, milliseconds(100)); });
  for (int i = 0; i < 20; i++) {
    other.wake();
    EXPECT_TRUE(ends_early(other, seconds(20)));
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_FALSE(sleeper.get());
}

// Who sleeps has nothing but wake() to learn it by. ThreadSanitizer finds an order that is missing.
TEST(WaitSet, WhoIsWokenSeesWhatWasDoneBefore) {
  constexpr uint64_t kRounds = 300;
  Bells bells;
  WaitSet set(bells);
  uint64_t told = 0;  // no atomic: what the order is for
  std::atomic<uint64_t> begun = 0, over = 0;
  auto reach = [](const std::atomic<uint64_t>& count, uint64_t n) {
    for (Deadline deadline(seconds(60)); count < n; std::this_thread::yield())
      check(!deadline.passed(), Code::kTimeout, "the other thread is gone");
  };
  auto other = std::async(std::launch::async, [&] {
    for (uint64_t n = 1; n <= kRounds; n++) {
      reach(begun, n);
      for (uint64_t turn = 0; turn < n % 50; turn++) std::this_thread::yield();  // asleep or not
      told = n;
      set.wake();
      reach(over, n);
    }
  });
  for (uint64_t n = 1; n <= kRounds; n++) {
    begun = n;
    EXPECT_TRUE(ends_early(set, seconds(60)));
    EXPECT_EQ(told, n);
    over = n;
  }
  other.get();
}

TEST(WaitSet, LooksAroundWhereThereIsNoDescriptor) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  Bells bells;
  WaitSet set(bells);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(ends_early(set, seconds(20)));
  EXPECT_TRUE(ends_early(set, seconds(20)));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_FALSE(ends_early(set, milliseconds(20)));
}

TEST(WaitSet, SpinsForItsTime) {
  Bells bells;
  for (bool yields : {false, true}) {
    WaitSet set(bells, yields);
    int polls = 0, between = 0;
    EXPECT_TRUE(set.spin(seconds(20), [&] { return ++polls == 1000; }, [&] { between++; }));
    EXPECT_EQ(polls, 1000);
    EXPECT_EQ(between, yields ? 999 : 999 / 64);
    auto begun = Clock::now();
    EXPECT_FALSE(set.spin(milliseconds(5), [] { return false; }, [] {}));
    EXPECT_GE(Clock::now() - begun, milliseconds(5));
    EXPECT_FALSE(set.spin(Duration(-1), [] { return false; }, [] {}));
  }
}

}  // namespace
}  // namespace ringcoll
