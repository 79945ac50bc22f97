// A rank that has no memory left in the middle of a call.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <new>
#include <string>
#include <vector>

#include "base/allocations_testing.h"
#include "coll/world_testing.h"

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
      if (m.rank == 1) testing::fail_allocation_after(failures);
      // One may still come to its end when all that is needed from rank 1 has been sent.
      for (int calls = 0; calls < 2; calls++) {
        m.executor.run({.collective = RC_ALLREDUCE,
                        .dtype = RC_FLOAT32,
                        .op = RC_SUM,
                        .buffers = std::span(&buffer, 1)});
        testing::fail_allocation_after(-1);
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

// The others know the new group by then, and this rank does not.
TEST_P(OutOfMemory, NoRankUsesAGroupThatAnotherOneDoesNotKnow) {
  constexpr Rank kSize = 3;
  auto errors = testing::run_ranks(kSize, testing::test_config(GetParam()), [](Member& m) {
    int rounds = 0;
    auto gather = [&](const void* mine, int64_t bytes, void* all, const int64_t* counts) {
      rc_buffer buffer{mine, all, bytes};
      rc_call call = testing::call_of(RC_ALLGATHER, RC_UINT8, RC_SUM, {&buffer, 1});
      call.counts = counts;
      testing::run(m, call);
      if (m.rank == 1 && rounds++ == 0) throw std::bad_alloc();
    };
    constexpr std::array<Rank, kSize> kAll = {0, 1, 2};
    try {
      m.comm.split(kAll, gather);
    } catch (const std::bad_alloc& error) {
      throw as_error(error);
    }
    ADD_FAILURE() << "rank " << m.rank << " has a group";
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_NE(std::string(error->what()).find("out of memory"), std::string::npos) << error->what();
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, OutOfMemory, ::testing::Values("loopback", "shm", "tcp"));

}  // namespace
}  // namespace ringcoll
