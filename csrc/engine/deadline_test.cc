// rc_call.timeout_s: the deadline of one call.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "engine/abi_testing.h"

namespace ringcoll::testing {
namespace {

using std::chrono::milliseconds;

double seconds_of(const auto& body) {
  auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The links may be there already, or be made by the call itself.
TEST(CallDeadline, EndsACallLongBeforeTheCommunicatorsOwn) {
  for (bool connected : {false, true})
    world(2, [&](rc_comm* comm, int rank) {
      float value = 1;
      rc_buffer buffer{&value, &value, 1};
      rc_call call = sum_of(&buffer);
      if (connected) {
        EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
      }
      if (rank == 1) {
        std::this_thread::sleep_for(milliseconds(2000));
        EXPECT_EQ(ringcoll_run(comm, &call), RC_TIMEOUT) << "as on rank 0, which was first";
        return;
      }
      call.timeout_s = 0.2;
      double took = seconds_of([&] { EXPECT_EQ(ringcoll_run(comm, &call), RC_TIMEOUT); });
      EXPECT_EQ(ringcoll_error_rank(), 1) << error_text();
      EXPECT_GE(took, 0.2);
      EXPECT_LT(took, 1.9);
      EXPECT_NE(error_text().find("timeout of the call"), std::string::npos) << error_text();
    });
}

TEST(CallDeadline, MayBeLaterThanTheCommunicatorsOwn) {
  for (double longer : {20.0, std::numeric_limits<double>::infinity()})
    world(
        2,
        [&](rc_comm* comm, int rank) {
          float value = 1;
          rc_buffer buffer{&value, &value, 1};
          rc_call call = sum_of(&buffer);
          EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
          call.timeout_s = longer;
          if (rank == 1) std::this_thread::sleep_for(milliseconds(1500));
          EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
          EXPECT_EQ(value, 4);
        },
        1);
}

// Neither those before it in the queue nor those after it.
TEST(CallDeadline, CountsTheCallAlone) {
  world(2, [](rc_comm* comm, int rank) {
    std::vector<float> values(3, 1);
    std::vector<rc_request*> requests(3);
    for (int i = 0; i < 3; i++) {
      rc_buffer buffer{&values[i], &values[i], 1};
      rc_call call = sum_of(&buffer);
      call.timeout_s = i == 1 ? 0.6 : 0;
      if (rank == 1 && i != 1) std::this_thread::sleep_for(milliseconds(900));
      ASSERT_EQ(ringcoll_start(comm, &call, &requests[i]), RC_OK) << error_text();
    }
    for (rc_request* request : requests) {
      int done = 0;
      EXPECT_EQ(ringcoll_wait(request, -1, &done), RC_OK) << error_text();
      ringcoll_request_free(request);
    }
    EXPECT_EQ(values, std::vector<float>(3, 2));
  });
}

TEST(CallDeadline, IsNotNegativeAndIsANumber) {
  world(1, [](rc_comm* comm, int) {
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    for (double nonsense : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
      call.timeout_s = nonsense;
      EXPECT_EQ(ringcoll_run(comm, &call), RC_INVALID_ARGUMENT);
      EXPECT_NE(error_text().find("timeout_s"), std::string::npos) << error_text();
    }
    call.timeout_s = 0;
    EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
  });
}

}  // namespace
}  // namespace ringcoll::testing
