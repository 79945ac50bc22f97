// Where pieces lie in the slots.
#include "coll/slots.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

namespace ringcoll {
namespace {

constexpr size_t kBankBytes = 1 << 20, kSlots = 4;

class SlotsTest : public ::testing::Test {
 protected:
  void TearDown() override { loop_.reset(); }  // before what it calls
  /// Of the next piece, which is over when the one after it begins: bytes from the memory's begin.
  static size_t place(Slots& slots, size_t bytes, const std::byte* memory) {
    Slot* slot = slots.take();
    auto banks = slots.place_for(*slot, bytes);
    Slots::give_back(*slot);
    return static_cast<size_t>(banks[0] - memory);
  }
  size_t place(size_t bytes) {
    size_t at = place(slots_, bytes, arena_.data());
    EXPECT_LE(at % kBankBytes + bytes, kBankBytes);
    return at;
  }

  static constexpr size_t kBytes = 2 * kSlots * kBankBytes;
  SharedMemory arena_ = SharedMemory::create(3 * kBytes);
  std::unique_ptr<EventLoop> loop_ = std::make_unique<EventLoop>("test");
  Extents extents_{arena_, {arena_.data() + kBytes, 2 * kBytes}, kBytes, "a test", *loop_};
  CallMemory memory_{{arena_.data(), kBytes}, extents_};
  Slots slots_{memory_, kSlots, kBankBytes, 64};
};

// Both cores' own caches would still have a place that is written again soon.
TEST_F(SlotsTest, SmallPiecesRotateThroughMuchMemory) {
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
TEST_F(SlotsTest, ShortPiecesDoNotRotate) {
  size_t first = place(63);
  for (size_t i = 1; i < kSlots; i++) place(63);
  EXPECT_EQ(place(63), first);
}

// A group of some ranks has little of its own.
TEST_F(SlotsTest, PiecesThatAreTooLongForWhatTheGroupKeepsAreInAnExtent) {
  constexpr size_t kShort = 1024, kKept = 2 * kSlots * kShort;
  CallMemory memory({arena_.data(), kKept}, extents_);
  Slots slots(memory, kSlots, kBankBytes);
  for (size_t i = 0; i < 2 * kSlots; i++)
    EXPECT_LE(place(slots, kShort, arena_.data()) + kShort, kKept);
  EXPECT_FALSE(memory.has_extent());
  std::set<size_t> places;
  for (size_t i = 0; i < 2 * kSlots; i++)
    places.insert(place(slots, kBankBytes, extents_.region().data()));
  EXPECT_EQ(places.size(), kSlots);
  EXPECT_EQ(*places.rbegin(), (kSlots - 1) * 2 * kBankBytes);
  EXPECT_TRUE(memory.has_extent());
  EXPECT_LE(place(slots, kShort, arena_.data()) + kShort, kKept) << "short ones stay there";
}

TEST_F(SlotsTest, AnExtentThatAnotherGroupHasTakenMeanwhileIsReplaced) {
  CallMemory mine({}, extents_), others({}, extents_);
  Slots slots(mine, kSlots, kBankBytes);
  const std::byte* region = extents_.region().data();
  EXPECT_LT(place(slots, 64, region), kBytes);
  mine.park({});
  bool fresh = false;
  EXPECT_EQ(others.take(&fresh).data(), region) << "it is mapped already";
  for (size_t i = 0; i < kSlots; i++) {
    size_t at = place(slots, kBankBytes, region);
    EXPECT_GE(at, kBytes);
    EXPECT_LE(at + 2 * kBankBytes, 2 * kBytes);
  }
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
