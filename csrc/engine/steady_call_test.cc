// A call like the one before costs what moving its bytes costs: it allocates nothing, and so builds
// no text that nobody reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "engine/abi_testing.h"

namespace {

// Allocations of this thread.
thread_local int allocations = 0;

}  // namespace

// Of the whole test program, arrays included. Inlined, GCC 12 would take them for a mismatched
// pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  allocations++;
  if (void* memory = std::malloc(std::max<size_t>(bytes, 1))) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace ringcoll::testing {
namespace {

TEST(SteadyCall, AllocatesNothing) {
  world(2, [](rc_comm* comm, int) {
    for (int64_t count : {1, 1000, 300000}) {
      std::vector<float> in(count, 1), out(count);
      rc_buffer buffer{in.data(), out.data(), count};
      rc_call call = sum_of(&buffer);
      // Polling alone: who blocks builds what it says if it waits in vain.
      for (int i = 0; i < 3; i++) EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
      int fewest = 1 << 30;
      for (int i = 0; i < 50; i++) {
        int before = allocations;
        rc_status status = ringcoll_run(comm, &call);
        fewest = std::min(fewest, allocations - before);
        EXPECT_EQ(status, RC_OK) << error_text();
      }
      EXPECT_EQ(fewest, 0) << count << " elements";
    }
  });
}

}  // namespace
}  // namespace ringcoll::testing
