#include "shm/own_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

#include "shm/peer_memory_testing.h"

namespace ringcoll {
namespace {

constexpr size_t kPage = 4096;

std::byte* map(int protection) {
  void* at = ::mmap(nullptr, 2 * kPage, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return static_cast<std::byte*>(at);
}

TEST(OwnMemory, WhatADriverHasMappedCannotBeRead) {
  std::byte* driver = testing::mapped_as_by_a_driver();
  ASSERT_NE(driver, nullptr);
  [[maybe_unused]] volatile auto readable = *driver;
  for (int again = 0; again < 2; again++) EXPECT_FALSE(can_be_read(driver, 8));
  std::vector<std::byte> usual(100'000);
  for (int again = 0; again < 2; again++) EXPECT_TRUE(can_be_read(usual.data(), usual.size()));
}

TEST(OwnMemory, BothEndsAreLookedAt) {
  std::byte* pages = map(PROT_READ | PROT_WRITE);
  ASSERT_EQ(::mprotect(pages + kPage, kPage, PROT_NONE), 0);
  EXPECT_TRUE(can_be_read(pages, kPage));
  EXPECT_FALSE(can_be_read(pages, kPage + 1));
  EXPECT_FALSE(can_be_read(pages + kPage - 1, 2));
  EXPECT_FALSE(can_be_read(pages + kPage, 1));
  EXPECT_TRUE(can_be_read(nullptr, 0));
  ::munmap(pages, 2 * kPage);
}

// An allocator unmaps, and a driver maps the same addresses.
TEST(OwnMemory, WhatHasChangedSinceItWasAskedIsLookedAt) {
  std::byte* pages = map(PROT_READ | PROT_WRITE);
  EXPECT_TRUE(can_be_read(pages, 2 * kPage));
  ASSERT_EQ(::mprotect(pages, kPage, PROT_NONE), 0);
  EXPECT_FALSE(can_be_read(pages, 2 * kPage));
  ::munmap(pages, 2 * kPage);
}

}  // namespace
}  // namespace ringcoll
