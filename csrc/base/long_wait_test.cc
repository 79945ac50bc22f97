#include "base/long_wait.h"

#include <gtest/gtest.h>

#include <vector>

namespace ringcoll {
namespace {

TEST(LongWait, IsNewsAfterHalfAMinuteAndThenWheneverItIsTwiceAsOld) {
  const Clock::time_point begin = Clock::now();
  LongWait wait(begin);
  std::vector<long> told;
  for (int s = 0; s <= 500; s++) {
    auto now = begin + std::chrono::seconds(s);
    EXPECT_EQ(now >= wait.next(), s == 30 || s == 60 || s == 120 || s == 240 || s == 480) << s;
    if (wait.is_news(now)) told.push_back(wait.age_s(now));
  }
  EXPECT_EQ(told, (std::vector<long>{30, 60, 120, 240, 480}));
}

// As of a process that was stopped.
TEST(LongWait, ThatNobodyHasLookedAtIsNewsOnce) {
  const Clock::time_point begin = Clock::now();
  LongWait wait(begin);
  EXPECT_TRUE(wait.is_news(begin + std::chrono::seconds(250)));
  EXPECT_FALSE(wait.is_news(begin + std::chrono::seconds(479)));
  EXPECT_TRUE(wait.is_news(begin + std::chrono::seconds(480)));
}

}  // namespace
}  // namespace ringcoll
