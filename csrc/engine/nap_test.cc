#include "engine/nap.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace ringcoll {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Nap, LastsNoLongerThanAsked) {
  Nap nap;
  auto begin = Clock::now();
  nap.take(milliseconds(20), [] { return false; });
  EXPECT_GE(Clock::now() - begin, milliseconds(20));
  EXPECT_FALSE(nap.taken());
}

TEST(Nap, IsNotTakenWithWorkToDo) {
  Nap nap;
  auto begin = Clock::now();
  nap.take(seconds(60), [&] { return nap.taken(); });  // who brings work now sees that it is taken
  EXPECT_LT(Clock::now() - begin, seconds(30));
  EXPECT_FALSE(nap.taken());
}

TEST(Nap, EndsWhenAnotherThreadEndsIt) {
  Nap nap;
  std::atomic<bool> over = false;
  std::thread sleeper([&] {
    nap.take(seconds(60), [] { return false; });
    over = true;
  });
  for (int i = 0; i < 3000 && !over; i++) {
    nap.end();  // of one that has not begun: nothing
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_TRUE(over);
  sleeper.join();
}

TEST(Nap, ThatIsOverDoesNotShortenTheNext) {
  Nap nap;
  nap.end();
  auto begin = Clock::now();
  nap.take(milliseconds(20), [] { return false; });
  EXPECT_GE(Clock::now() - begin, milliseconds(20));
}

}  // namespace
}  // namespace ringcoll
