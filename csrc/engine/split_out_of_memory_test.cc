// A rank that has no memory left in the middle of a split.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <string>
#include <vector>

#include "base/allocations_testing.h"
#include "engine/abi_testing.h"
#include "ringcoll/ringcoll.h"

namespace {

using ringcoll::testing::error_text, ringcoll::testing::fail_allocation_after;

constexpr int kRanks = 3;

/// "" if a call of the communicator succeeds.
std::string use(rc_comm* comm) {
  float value = 1;
  rc_buffer buffer{&value, &value, 1};
  rc_call call = ringcoll::testing::sum_of(&buffer);
  return ringcoll_run(comm, &call) == RC_OK ? "" : error_text();
}

/// What comes of splitting off all ranks, and of using what comes of it, on a rank that has memory
/// for so many allocations in the split; -1: for all.
std::string split_and_use(rc_comm* comm, int allocations) {
  std::array<int32_t, kRanks> all = {0, 1, 2};
  rc_comm* part = nullptr;
  fail_allocation_after(allocations);
  rc_status status = ringcoll_comm_split(comm, all.data(), kRanks, "part", &part);
  fail_allocation_after(-1);
  std::string text = status == RC_OK ? use(part) : error_text();
  ringcoll_comm_destroy(part);
  return text;
}

class SplitOutOfMemory : public ringcoll::testing::OverTransports {};

// Whichever allocation it is that fails. The whole goes on unless it failed itself, in a call.
TEST_P(SplitOutOfMemory, AllRanksLearnThatOneHasNoMemory) {
  std::array<std::string, kRanks> said;
  std::barrier together(kRanks);
  int failures = 0;
  bool failed = true, whole_lives = false;
  auto judge = [&] {
    failed = !said[1].empty();
    for (int rank = 0; rank < kRanks; rank++)
      EXPECT_EQ(said[rank].find("out of memory") != std::string::npos, failed)
          << "rank " << rank << ", failure " << failures << ": " << said[rank];
    failures += failed;
  };
  while (failed && !HasFailure())
    ringcoll::testing::world(kRanks, [&](rc_comm* comm, int rank) {
      do {
        said[rank] = split_and_use(comm, rank == 1 ? failures : -1);
        together.arrive_and_wait();
        if (rank == 0) judge();
        std::string whole = use(comm);
        if (rank == 0) whole_lives = whole.empty();
        together.arrive_and_wait();
      } while (failed && whole_lives && !HasFailure());
    });
  EXPECT_GT(failures, 20);
}

INSTANTIATE_TEST_SUITE_P(Transports, SplitOutOfMemory,
                         ringcoll::testing::transports_of_one_process());

}  // namespace
