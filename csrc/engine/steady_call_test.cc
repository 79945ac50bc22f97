// A call like the one before costs what moving its bytes costs: it allocates nothing, and so builds
// no text that nobody reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/allocations_testing.h"
#include "engine/abi_testing.h"

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
        int before = allocations();
        rc_status status = ringcoll_run(comm, &call);
        fewest = std::min(fewest, allocations() - before);
        EXPECT_EQ(status, RC_OK) << error_text();
      }
      EXPECT_EQ(fewest, 0) << count << " elements";
    }
  });
}

}  // namespace
}  // namespace ringcoll::testing
