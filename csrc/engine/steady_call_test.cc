// A call like the one before costs what moving its bytes costs: it allocates nothing, and so builds
// no text that nobody reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/allocations_testing.h"
#include "engine/abi_testing.h"

namespace ringcoll::testing {
namespace {

constexpr int kSize = 3;
constexpr rc_collective kOfAllRanks[] = {
    RC_ALLREDUCE, RC_BROADCAST, RC_ALLGATHER, RC_REDUCE_SCATTER, RC_ALLTOALL, RC_SCAN, RC_EXSCAN};
constexpr rc_collective kWithBuffers[] = {RC_ALLREDUCE,      RC_BROADCAST, RC_REDUCE, RC_ALLGATHER,
                                          RC_REDUCE_SCATTER, RC_ALLTOALL,  RC_GATHER, RC_SCATTER,
                                          RC_SCAN,           RC_EXSCAN};

TEST(SteadyCall, AllocatesNothing) {
  world(2, [](rc_comm* comm, int) {
    for (rc_collective collective : kOfAllRanks) {
      for (int64_t count : {1, 1000, 300000}) {
        std::vector<float> in(2 * count, 1), out(2 * count);
        rc_buffer buffer{in.data(), out.data(), count};
        rc_call call = sum_of(&buffer);
        call.collective = collective;
        // Polling alone: who blocks builds what it says if it waits in vain.
        for (int i = 0; i < 3; i++) EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
        int fewest = 1 << 30;
        for (int i = 0; i < 50; i++) {
          int before = allocations();
          rc_status status = ringcoll_run(comm, &call);
          fewest = std::min(fewest, allocations() - before);
          EXPECT_EQ(status, RC_OK) << error_text();
        }
        EXPECT_EQ(fewest, 0) << count << " elements, collective " << collective;
      }
    }
  });
}

/// The elements that a rank puts in, and gets, of chunks of `count`; of a vector both are `count`.
struct Extents {
  int64_t in, out;
};
Extents extents_of(rc_collective collective, int64_t count) {
  switch (collective) {
    case RC_ALLGATHER:
    case RC_GATHER:
      return {count, kSize * count};
    case RC_REDUCE_SCATTER:
    case RC_SCATTER:
      return {kSize * count, count};
    case RC_ALLTOALL:
      return {kSize * count, kSize * count};
    default:
      return {count, count};
  }
}

float input_of(int turn, int rank, int64_t i) { return static_cast<float>(turn + 100 * rank + i); }

float expected_of(rc_collective collective, int turn, int rank, int64_t count, int64_t i) {
  auto sum = [&](int64_t at, int ranks = kSize) {
    float all = 0;
    for (int r = 0; r < ranks; r++) all += input_of(turn, r, at);
    return all;
  };
  switch (collective) {
    case RC_BROADCAST:
      return input_of(turn, 0, i);
    case RC_ALLGATHER:
    case RC_GATHER:
      return input_of(turn, static_cast<int>(i / count), i % count);
    case RC_REDUCE_SCATTER:
      return sum(rank * count + i);
    case RC_SCATTER:
      return input_of(turn, 0, rank * count + i);
    case RC_ALLTOALL:
      return input_of(turn, static_cast<int>(i / count), rank * count + i % count);
    case RC_SCAN:
      return sum(i, rank + 1);
    case RC_EXSCAN:
      return sum(i, rank);
    default:
      return sum(i);
  }
}

// Nothing is worked out anew for a call like the one before, whose memory is elsewhere each time,
// at any distance, and now and then in place.
TEST(SteadyCall, TakesTheMemoryOfEachCall) {
  world(kSize, [](rc_comm* comm, int rank) {
    std::mt19937 random(rank);
    for (rc_collective collective : kWithBuffers) {
      for (int64_t count : {5, 40000}) {
        auto [in, out] = extents_of(collective, count);
        std::vector<float> memory(2 * kSize * count + 64);
        for (int turn = 0; turn < 12; turn++) {
          float* input = memory.data() + random() % 32;
          float* output = memory.data() + in + 32 + random() % 32;
          if (turn % 3 == 2) {  // in place
            float* first = std::min(input, output);
            input = first + (in < out ? rank * count : 0);
            output = first + (in > out ? rank * count : 0);
          }
          for (int64_t i = 0; i < in; i++) input[i] = input_of(turn, rank, i);
          rc_buffer buffer{input, output, count};
          rc_call call = sum_of(&buffer);
          call.collective = collective;
          ASSERT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
          bool gets = rank == 0 || (collective != RC_REDUCE && collective != RC_GATHER);
          for (int64_t i = 0; gets && i < out; i++)
            ASSERT_EQ(output[i], expected_of(collective, turn, rank, count, i))
                << "collective " << collective << ", turn " << turn << ", element " << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace ringcoll::testing
