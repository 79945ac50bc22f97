// A rank that has no memory left in the middle of a call.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>

#include "coll/world_testing.h"

namespace {

// How many allocations of this thread are still to succeed before one fails; -1: no end.
thread_local int left = -1;

}  // namespace

// Of the whole test program, arrays included. Inlined, GCC 12 would take them for a mismatched
// pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (left >= 0 && left-- == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(std::max<size_t>(bytes, 1))) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(std::max<size_t>(bytes, 1));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace ringcoll {
namespace {

using testing::Member;

class OutOfMemory : public ::testing::TestWithParam<const char*> {};

// Whichever allocation it is that fails.
TEST_P(OutOfMemory, AllRanksLearnThatOneHasNoMemory) {
  constexpr Rank kSize = 3;
  int failures = 0;
  for (bool failed = true; failed; failures += failed) {
    auto errors = testing::run_ranks(kSize, testing::test_config(GetParam()), [&](Member& m) {
      std::vector<float> ones(1 << 16, 1), sums(ones.size());
      rc_buffer buffer{ones.data(), sums.data(), static_cast<int64_t>(ones.size())};
      if (m.rank == 1) left = failures;
      // One may still come to its end when all that is needed from rank 1 has been sent.
      for (int calls = 0; calls < 2; calls++) {
        m.executor.run({.collective = RC_ALLREDUCE,
                        .dtype = RC_FLOAT32,
                        .op = RC_SUM,
                        .buffers = std::span(&buffer, 1)});
        left = -1;
        EXPECT_EQ(std::ranges::count(sums, kSize), std::ssize(sums));
      }
    });
    failed = errors[1].has_value();
    for (Rank rank = 0; rank < kSize; rank++) {
      ASSERT_EQ(errors[rank].has_value(), failed) << rank << ", failure " << failures;
      if (!failed) continue;
      std::string text = errors[rank]->what();
      EXPECT_NE(text.find("out of memory"), std::string::npos) << rank << ": " << text;
    }
  }
  EXPECT_GT(failures, 3);
}

INSTANTIATE_TEST_SUITE_P(Transports, OutOfMemory, ::testing::Values("loopback", "shm", "tcp"));

}  // namespace
}  // namespace ringcoll
