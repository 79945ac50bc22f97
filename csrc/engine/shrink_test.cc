// ringcoll_comm_shrink: going on without those who are gone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "engine/abi_testing.h"

namespace ringcoll::testing {
namespace {

using Shrink = OverTransports;
INSTANTIATE_TEST_SUITE_P(, Shrink, transports_of_one_process(),
                         [](const auto& info) { return std::string(info.param); });

/// The sum of a number of each rank, or the status.
std::pair<rc_status, float> sum(rc_comm* comm, float value) {
  rc_buffer buffer{&value, &value, 1};
  rc_call call = sum_of(&buffer);
  rc_status status = ringcoll_run(comm, &call);
  return {status, value};
}

rc_comm* rest_of(rc_comm* comm) {
  rc_comm* rest = nullptr;
  EXPECT_EQ(ringcoll_comm_shrink(comm, "rest", &rest), RC_OK) << error_text();
  return rest;
}

TEST_P(Shrink, OfOneThatHasNotFailedIsAnotherOfAllItsRanks) {
  world(3, [](rc_comm* comm, int rank) {
    for (int i = 0; i < 3; i++) {
      rc_comm* rest = rest_of(comm);
      ASSERT_TRUE(rest);
      EXPECT_EQ(ringcoll_comm_rank(rest), rank);
      EXPECT_EQ(sum(rest, 1), std::pair(RC_OK, 3.0F)) << error_text();
      EXPECT_EQ(sum(comm, 2), std::pair(RC_OK, 6.0F)) << error_text();
      ringcoll_comm_destroy(rest);
    }
  });
}

// Whoever is not among `leaving` goes on. On the ring their lifelines are cut in pieces.
void go_on_without(int size, const std::set<int>& leaving) {
  std::barrier all(size);
  world(size, [&](rc_comm* comm, int rank) {
    EXPECT_EQ(sum(comm, 1), std::pair(RC_OK, static_cast<float>(size))) << error_text();
    all.arrive_and_wait();
    if (leaving.contains(rank)) return;
    rc_status status = RC_OK;
    while (status == RC_OK) status = sum(comm, 1).first;
    EXPECT_EQ(status, RC_PEER_LOST) << error_text();
    rc_comm* rest = rest_of(comm);
    ASSERT_TRUE(rest);
    int left = size - static_cast<int>(leaving.size());
    EXPECT_EQ(ringcoll_comm_size(rest), left);
    auto before = std::ranges::count_if(leaving, [rank](int other) { return other < rank; });
    EXPECT_EQ(ringcoll_comm_rank(rest), rank - before) << "in their order";
    rc_comm* again = rest_of(rest);
    ASSERT_TRUE(again);
    if (rank % 2 == 0) ringcoll_comm_destroy(rest);
    for (int i = 0; i < 3; i++)
      EXPECT_EQ(sum(again, 1), std::pair(RC_OK, static_cast<float>(left))) << error_text();
    if (rank % 2 == 1) ringcoll_comm_destroy(rest);
    ringcoll_comm_destroy(again);
  });
}

TEST_P(Shrink, OneThatIsGone) { go_on_without(4, {1}); }
TEST_P(Shrink, SeveralThatAreGone) { go_on_without(6, {0, 2, 5}); }
TEST_P(Shrink, AllButOneThatAreGone) { go_on_without(3, {1, 2}); }

TEST_P(Shrink, AgainAndAgain) {
  world(5, [](rc_comm* comm, int rank) {
    std::vector<rc_comm*> made;
    rc_comm* now = comm;
    for (int left = 5; left > 1 && rank < left; left--) {
      EXPECT_EQ(sum(now, 1), std::pair(RC_OK, static_cast<float>(left))) << error_text();
      if (rank == left - 1) break;  // and leaves
      while (sum(now, 1).first == RC_OK) continue;
      made.push_back(now = rest_of(now));
      ASSERT_TRUE(now);
    }
    for (rc_comm* each : made) ringcoll_comm_destroy(each);
  });
}

TEST_P(Shrink, OfASplitOfSome) {
  world(5, [](rc_comm* comm, int rank) {
    std::array<int, 4> some = {4, 2, 0, 3};
    bool in = rank != 1;
    rc_comm* part = nullptr;
    ASSERT_EQ(ringcoll_comm_split(comm, some.data(), in ? 4 : 0, "part", &part), RC_OK)
        << error_text();
    if (in) {
      EXPECT_EQ(sum(part, static_cast<float>(rank)), std::pair(RC_OK, 9.0F)) << error_text();
      if (rank != 2) {
        while (sum(part, 1).first == RC_OK) continue;
        rc_comm* rest = rest_of(part);
        ASSERT_TRUE(rest);
        EXPECT_EQ(ringcoll_comm_rank(rest), rank == 4 ? 0 : rank == 0 ? 1 : 2);
        EXPECT_EQ(sum(rest, static_cast<float>(rank)), std::pair(RC_OK, 7.0F)) << error_text();
        ringcoll_comm_destroy(rest);
      }
    }
    ringcoll_comm_destroy(part);
    EXPECT_EQ(sum(comm, 1), std::pair(RC_OK, 5.0F)) << error_text();
  });
}

TEST_P(Shrink, NamesWhoDoesNotCome) {
  std::barrier all(3);
  world(
      3,
      [&](rc_comm* comm, int rank) {
        EXPECT_EQ(sum(comm, 1), std::pair(RC_OK, 3.0F)) << error_text();
        if (rank != 1) {
          rc_comm* rest = comm;
          EXPECT_EQ(ringcoll_comm_shrink(comm, "rest", &rest), RC_TIMEOUT);
          EXPECT_EQ(ringcoll_error_rank(), 1) << error_text();
          EXPECT_EQ(rest, nullptr);
        }
        all.arrive_and_wait();
      },
      1.5);
}

TEST_P(Shrink, IsRefusedOnAllRanksWhereThereIsNoRoom) {
  ringcoll::testing::FewGroups few;
  world(2, [](rc_comm* comm, int rank) {
    std::vector<rc_comm*> made;
    std::array<int, 1> alone = {rank};
    // Rank 1 is in as many as can be.
    rc_comm* part = nullptr;
    while (ringcoll_comm_split(comm, alone.data(), rank, "part", &part) == RC_OK)
      if (part) made.push_back(part);
    EXPECT_NE(error_text().find("close some groups"), std::string::npos) << error_text();
    rc_comm* rest = nullptr;
    EXPECT_EQ(ringcoll_comm_shrink(comm, "rest", &rest), RC_TRANSPORT);
    EXPECT_EQ(ringcoll_error_rank(), 1) << error_text();
    EXPECT_NE(error_text().find("close some"), std::string::npos) << error_text();
    EXPECT_EQ(sum(comm, 1), std::pair(RC_OK, 2.0F)) << error_text();
    for (rc_comm* part : made) ringcoll_comm_destroy(part);
    rest = rest_of(comm);
    EXPECT_EQ(sum(rest, 1), std::pair(RC_OK, 2.0F)) << error_text();
    ringcoll_comm_destroy(rest);
  });
}

TEST_P(Shrink, IsNotForCallbacksOfTheSame) {
  world(1, [](rc_comm* comm, int) {
    struct State {
      rc_comm* comm;
      rc_status status = RC_OK;
    } state{comm};
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    call.done_state = &state;
    call.done = [](void* given, rc_request*, rc_status) {
      auto& seen = *static_cast<State*>(given);
      rc_comm* rest = nullptr;
      seen.status = ringcoll_comm_shrink(seen.comm, "rest", &rest);
    };
    rc_request* request = nullptr;
    ASSERT_EQ(ringcoll_start(comm, &call, &request), RC_OK);
    int done = 0;
    EXPECT_EQ(ringcoll_wait(request, -1, &done), RC_OK);
    ringcoll_request_free(request);
    EXPECT_EQ(state.status, RC_INVALID_ARGUMENT);
    rc_comm* rest = nullptr;
    EXPECT_EQ(ringcoll_comm_shrink(nullptr, "rest", &rest), RC_INVALID_ARGUMENT);
    EXPECT_EQ(ringcoll_comm_shrink(comm, "rest", nullptr), RC_INVALID_ARGUMENT);
  });
}

}  // namespace
}  // namespace ringcoll::testing
