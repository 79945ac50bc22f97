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
  for (auto chunk = staging.take(100); !chunk.empty(); chunk = staging.take(100)) {
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

TEST(Staging, TakesTheSizeThatHoldsTheBytes) {
  std::vector<std::byte> memory(1000);
  Staging staging(memory, 100, 200);
  for (uint64_t bytes : {0, 1, 100}) EXPECT_EQ(staging.take(bytes).size(), 100u) << bytes;
  for (uint64_t bytes : {101, 200}) EXPECT_EQ(staging.take(bytes).size(), 200u) << bytes;
  EXPECT_TRUE(staging.take(150).empty()) << "there were two";
  EXPECT_EQ(staging.take(50).size(), 100u);
  EXPECT_TRUE(staging.take(201).empty());
}

TEST(Staging, WhatIsGivenBackIsTakenAgain) {
  std::vector<std::byte> memory(400);
  Staging staging(memory, 200, 200);
  auto small = staging.take(200);
  EXPECT_TRUE(staging.take(200).empty());
  staging.give_back(small);
  staging.give_back({});
  EXPECT_EQ(staging.take(200).data(), small.data());
}

TEST(Staging, WhereThereIsNoMemoryThereAreNoChunks) {
  Staging none({}, 100, 200);
  EXPECT_EQ(none.small_bytes(), 0u);
  EXPECT_EQ(none.large_bytes(), 0u);
  EXPECT_TRUE(none.take(0).empty() && none.take_large().empty());
  std::vector<std::byte> memory(60);
  Staging little(memory, 100, 200);
  EXPECT_EQ(little.small_bytes(), 0u);
  EXPECT_EQ(little.take_large().size(), 30u);
}

}  // namespace
}  // namespace ringcoll
