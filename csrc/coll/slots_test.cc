// Where pieces lie in the slots.
#include "coll/slots.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace ringcoll {
namespace {

constexpr size_t kBankBytes = 1 << 20, kSlots = 4;

class SlotsTest : public ::testing::Test {
 protected:
  SlotsTest()
      : slots_(arena_, {arena_.data(), arena_.bytes()}, kSlots, kBankBytes, {.turning = 64}) {}

  /// Of the next piece, which is over when the one after it begins.
  size_t place(size_t bytes) {
    Slot* slot = slots_.take();
    size_t at = slots_.offset_for(*slot, bytes);
    Slots::give_back(*slot);
    EXPECT_LE(at + bytes, kBankBytes);
    return static_cast<size_t>(slot->bank[0] - arena_.data()) + at;
  }

  SharedMemory arena_ = SharedMemory::create(2 * kSlots * kBankBytes, false);
  Slots slots_;
};

// Both cores' own caches would still have a place that is written again soon.
TEST_F(SlotsTest, SmallPiecesTurnThroughMuchMemory) {
  constexpr size_t kBytes = 4096;
  std::set<size_t> places;
  size_t written = 0;
  for (; places.insert(place(kBytes)).second; written += kBytes) {
  }
  EXPECT_GE(written, size_t{256} << 10);
  EXPECT_LE(written, kSlots * kBankBytes);
}

TEST_F(SlotsTest, APieceThatNeedsABankHasIt) {
  size_t small = place(64), same_slot = 0;
  for (size_t i = 0; i < kSlots; i++) same_slot = place(kBankBytes);
  EXPECT_EQ(same_slot % kBankBytes, 0u);
  EXPECT_EQ(same_slot, small / kBankBytes * kBankBytes);
}

TEST_F(SlotsTest, PiecesOfDifferentLengthsFollowOneAnother) {
  size_t first = place(100);
  for (size_t i = 1; i < kSlots; i++) place(64);
  size_t second = place(5000);
  EXPECT_GE(second, first + 100);
  EXPECT_EQ(second % 64, 0u) << "in lines of its own";
  for (size_t i = 1; i < kSlots; i++) place(64);
  EXPECT_GE(place(64), second + 5000);
}

// What has left when it is sent is best written where it was written before.
TEST_F(SlotsTest, WhatIsNotWorthItDoesNotTurn) {
  size_t first = place(63);
  for (size_t i = 1; i < kSlots; i++) place(63);
  EXPECT_EQ(place(63), first);
}

TEST_F(SlotsTest, NoneIsTakenTwice) {
  std::set<Slot*> taken;
  for (size_t i = 0; i < kSlots; i++) EXPECT_TRUE(taken.insert(slots_.take()).second);
  EXPECT_EQ(slots_.take(), nullptr);
  Slots::give_back(**taken.begin());
  EXPECT_EQ(slots_.take(), *taken.begin());
}

}  // namespace
}  // namespace ringcoll
