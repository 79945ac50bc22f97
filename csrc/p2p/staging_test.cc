#include "p2p/staging.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace ringcoll {
namespace {

TEST(Staging, CutsHalfOfTheMemoryIntoEitherSize) {
  std::vector<std::byte> memory(1000);
  Staging staging(memory, 100, 200);
  std::set<std::byte*> small, large;
  for (auto chunk = staging.take_small(); !chunk.empty(); chunk = staging.take_small()) {
    EXPECT_EQ(chunk.size(), 100u);
    EXPECT_TRUE(small.insert(chunk.data()).second);
    EXPECT_LE(chunk.data() + chunk.size(), memory.data() + 500);
  }
  for (auto chunk = staging.take_large(); !chunk.empty(); chunk = staging.take_large()) {
    EXPECT_EQ(chunk.size(), 200u);
    EXPECT_TRUE(large.insert(chunk.data()).second);
    EXPECT_GE(chunk.data(), memory.data() + 500);
    EXPECT_LE(chunk.data() + chunk.size(), memory.data() + memory.size());
  }
  EXPECT_EQ(small.size(), 5u);
  EXPECT_EQ(large.size(), 2u);
}

TEST(Staging, WhatIsGivenBackIsTakenAgain) {
  std::vector<std::byte> memory(400);
  Staging staging(memory, 200, 200);
  auto small = staging.take_small();
  EXPECT_TRUE(staging.take_small().empty());
  staging.give_back(small);
  staging.give_back({});
  EXPECT_EQ(staging.take_small().data(), small.data());
}

TEST(Staging, WhereThereIsNoMemoryThereAreNoChunks) {
  Staging none({}, 100, 200);
  EXPECT_EQ(none.small_bytes(), 0u);
  EXPECT_EQ(none.large_bytes(), 0u);
  EXPECT_TRUE(none.take_small().empty() && none.take_large().empty());
  std::vector<std::byte> memory(60);
  Staging little(memory, 100, 200);
  EXPECT_EQ(little.small_bytes(), 0u);
  EXPECT_EQ(little.take_large().size(), 30u);
}

}  // namespace
}  // namespace ringcoll
