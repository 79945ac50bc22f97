#include "engine/habit.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace ringcoll {
namespace {

using std::chrono::milliseconds;

/// A batch after which this thread does something else for so long before it waits. Whether it
/// came soon, which a busy machine may delay: asked several times.
bool ever_soon(Habit& habit, milliseconds pause) {
  for (int i = 0; i < 100; i++) {
    habit.forget();
    habit.batch_begins();
    Habit::leave_library();
    std::this_thread::sleep_for(pause);
    habit.waits();
    if (habit.waits_soon()) return true;
  }
  return false;
}

TEST(Habit, IsWhatWasDoneTheLastTime) {
  Habit habit;
  EXPECT_FALSE(habit.waits_soon());
  EXPECT_TRUE(ever_soon(habit, milliseconds(0)));
  EXPECT_FALSE(ever_soon(habit, milliseconds(1)));
}

TEST(Habit, GoesByTheFirstWaitOfABatch) {
  Habit habit;
  habit.batch_begins();
  Habit::leave_library();
  std::this_thread::sleep_for(milliseconds(1));
  for (int i = 0; i < 100; i++) {
    habit.waits();
    EXPECT_FALSE(habit.waits_soon());
    Habit::leave_library();
  }
}

// Who waits for calls of several engines, one after the other, is late for none.
TEST(Habit, WaitingElsewhereIsNothingElse) {
  Habit first, second;
  bool soon = false;
  for (int i = 0; i < 100 && !soon; i++) {
    second.batch_begins();
    Habit::leave_library();
    first.waits();
    std::this_thread::sleep_for(milliseconds(1));
    Habit::leave_library();
    second.waits();
    soon = second.waits_soon();
  }
  EXPECT_TRUE(soon);
}

// From the second batch on.
TEST(Habit, GoesOnWhereAllAreWaitedFor) {
  Habit habit;
  auto goes_on = [&](int waits, milliseconds pause) {
    habit.batch_begins();
    for (int i = 0; i < waits; i++) {
      Habit::leave_library();
      std::this_thread::sleep_for(i > 0 ? pause : milliseconds(0));
      habit.waits();
    }
    habit.batch_begins();
    return habit.goes_on();
  };
  EXPECT_FALSE(habit.goes_on());
  bool once = false;
  for (int i = 0; i < 100 && !once; i++) once = goes_on(3, milliseconds(0));
  EXPECT_TRUE(once);
  for (int i = 0; i < 100; i++) {
    EXPECT_FALSE(goes_on(1, milliseconds(0)));
    EXPECT_FALSE(goes_on(3, milliseconds(1)));
  }
}

}  // namespace
}  // namespace ringcoll
