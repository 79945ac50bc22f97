#include "p2p/seal.h"

#include <gtest/gtest.h>

#include <memory>

namespace ringcoll {
namespace {

uint64_t word_of(uint64_t address) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(address), __ATOMIC_SEQ_CST);
}

TEST(Seal, IsWholeUntilItIsBrokenAndNeverWholeAgain) {
  auto seal = std::make_unique<Seal>();
  uint64_t value = seal->value(), address = seal->address();
  EXPECT_EQ(word_of(address), value);
  seal->break_it();
  EXPECT_NE(word_of(address), value);
  seal.reset();
  EXPECT_NE(word_of(address), value);
}

TEST(Seal, BreaksWithItsOwnerAndIsNoOtherOnes) {
  auto first = std::make_unique<Seal>();
  Seal second;
  EXPECT_NE(first->value(), second.value());
  uint64_t address = first->address();
  first.reset();
  EXPECT_EQ(word_of(address), 0u);
  EXPECT_EQ(word_of(second.address()), second.value());
}

// Whoever has copied under the first finds it broken all the same, and cannot break the second.
TEST(Seal, GivesItsWordToALaterOne) {
  auto first = std::make_unique<Seal>();
  uint64_t value = first->value(), address = first->address();
  first->break_it();
  Seal second;
  EXPECT_EQ(second.address(), address);
  EXPECT_EQ(word_of(address), second.value());
  EXPECT_NE(word_of(address), value);
  first.reset();
  EXPECT_EQ(word_of(address), second.value());
}

}  // namespace
}  // namespace ringcoll
