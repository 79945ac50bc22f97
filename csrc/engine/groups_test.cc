// Communicators that are split off others, as the users of the C ABI have them: ranks as threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/abi_testing.h"
#include "ringcoll/ringcoll.h"

namespace {

using ringcoll::testing::error_text, ringcoll::testing::make;

rc_comm* split(rc_comm* comm, const std::vector<int32_t>& ranks) {
  rc_comm* part = nullptr;
  EXPECT_EQ(
      ringcoll_comm_split(comm, ranks.data(), static_cast<int32_t>(ranks.size()), "part", &part),
      RC_OK)
      << error_text();
  return part;
}

rc_call sum_of(rc_buffer* buffer) {
  rc_call call = ringcoll::testing::sum_of(buffer);
  call.dtype = RC_INT64;
  return call;
}

/// The sum over all ranks of what each gives, `elements` times; -1 for an error.
int64_t sum(rc_comm* comm, int64_t value, size_t elements = 1) {
  std::vector<int64_t> values(elements, value);
  rc_buffer buffer{values.data(), values.data(), static_cast<int64_t>(elements)};
  rc_call call = sum_of(&buffer);
  if (ringcoll_run(comm, &call) != RC_OK) return -1;
  bool alike = std::ranges::all_of(values, [&](int64_t one) { return one == values[0]; });
  EXPECT_TRUE(alike);
  return values[0];
}

class Splits : public ::testing::TestWithParam<std::string> {
 protected:
  template <typename Body>
  void world(int size, Body body) {
    static std::atomic<int> worlds{0};
    std::string store = "local://splits" + std::to_string(worlds++);
    ::setenv("RINGCOLL_TRANSPORT", GetParam().c_str(), 1);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; rank++)
      threads.emplace_back([&, rank] {
        rc_comm* comm = make(store, rank, size, 30);
        if (comm) body(comm, rank);
      });
    for (std::thread& thread : threads) thread.join();
    ::unsetenv("RINGCOLL_TRANSPORT");
  }
};
INSTANTIATE_TEST_SUITE_P(, Splits, ::testing::Values("loopback", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(Splits, OfSplits) {
  world(4, [](rc_comm* comm, int rank) {
    rc_comm* most = split(comm, rank == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{3, 2, 1});
    if (rank > 0) {
      EXPECT_EQ(sum(most, rank), 6);
      // Ranks of the part: 3 and 1 of the whole.
      int own = ringcoll_comm_rank(most);
      EXPECT_EQ(own, 3 - rank);
      rc_comm* ends = split(most, own == 1 ? std::vector<int32_t>{} : std::vector<int32_t>{2, 0});
      if (own != 1) {
        EXPECT_EQ(sum(ends, rank), 4);
      }
      EXPECT_EQ(sum(most, 1, 100'000), 3);
      ringcoll_comm_destroy(ends);
    }
    EXPECT_EQ(sum(comm, 1), 4);
    ringcoll_comm_destroy(most);
    ringcoll_comm_destroy(comm);
  });
}

TEST_P(Splits, OutliveWhatTheyWereSplitFrom) {
  world(3, [](rc_comm* comm, int rank) {
    rc_comm* all = split(comm, {1, 2, 0});
    EXPECT_EQ(sum(comm, 1), 3);
    ringcoll_comm_destroy(comm);
    for (int i = 0; i < 20; i++) EXPECT_EQ(sum(all, rank, 1 + 5000 * i), 3);
    rc_comm* again = split(all, {0, 1, 2});
    ringcoll_comm_destroy(all);
    EXPECT_EQ(sum(again, rank), 3);
    ringcoll_comm_destroy(again);
  });
}

TEST_P(Splits, FailAlone) {
  world(4, [](rc_comm* comm, int rank) {
    std::vector<int32_t> half = rank < 2 ? std::vector<int32_t>{0, 1} : std::vector<int32_t>{3, 2};
    rc_comm* part = split(comm, half);
    EXPECT_GT(sum(part, 1), 0);
    if (rank == 0) ringcoll_comm_abort(part, "enough");
    if (rank < 2) {
      while (sum(part, 1) != -1) {
      }
      EXPECT_NE(error_text().find("enough"), std::string::npos) << error_text();
    } else {
      EXPECT_EQ(sum(part, 1), 2);
    }
    EXPECT_EQ(sum(comm, 1), 4);
    rc_comm* again = split(comm, half);
    EXPECT_EQ(sum(again, 1, 10'000), 2);
    for (rc_comm* one : {part, again, comm}) ringcoll_comm_destroy(one);
  });
}

// The whole is not harmed by what cannot be made, whichever rank has no room.
TEST_P(Splits, ThatFindNoRoomAreRefusedOnAllRanks) {
  ringcoll::testing::FewGroups few;
  world(2, [](rc_comm* comm, int rank) {
    std::vector<rc_comm*> parts;
    rc_comm* part = nullptr;
    std::vector<int32_t> both = {0, 1};
    while (ringcoll_comm_split(comm, both.data(), 2, "part", &part) == RC_OK) parts.push_back(part);
    EXPECT_GE(parts.size(), 900u);
    EXPECT_NE(error_text().find("close some groups"), std::string::npos) << error_text();
    EXPECT_EQ(sum(comm, rank), 1);
    for (size_t i = 0; i < parts.size(); i += 10) EXPECT_EQ(sum(parts[i], 1), 2);
    if (rank == 1) ringcoll_comm_destroy(parts.back());
    EXPECT_EQ(sum(comm, rank), 1);
    EXPECT_NE(ringcoll_comm_split(comm, both.data(), 2, "part", &part), RC_OK)
        << "rank 0 has not closed its own";
    EXPECT_NE(error_text().find("rank 0"), std::string::npos) << error_text();
    if (rank == 0) ringcoll_comm_destroy(parts.back());
    EXPECT_EQ(sum(comm, rank), 1);
    parts.back() = split(comm, both);
    EXPECT_EQ(sum(parts.back(), 1), 2);
    for (rc_comm* one : parts) ringcoll_comm_destroy(one);
    ringcoll_comm_destroy(comm);
  });
}

// Calls of different communicators come in any order on any rank, each from a thread of its own,
// and are made while others are split off and closed.
TEST_P(Splits, AreIndependentOfOneAnother) {
  static constexpr int kRanks = 4, kGroups = 4, kCalls = 60;
  world(kRanks, [](rc_comm* comm, int rank) {
    std::vector<rc_comm*> groups;
    for (int g = 0; g < kGroups; g++) {
      std::vector<int32_t> members = {0, 1, 2, 3};
      std::ranges::shuffle(members, std::mt19937(g));
      groups.push_back(split(comm, members));
    }
    std::vector<std::thread> threads;
    for (int g = 0; g < kGroups; g++)
      threads.emplace_back([&, g] {
        std::mt19937 random(rank * kGroups + g);
        std::mt19937 sizes(g);  // the same on all ranks
        for (int i = 0; i < kCalls; i++) {
          if (random() % 4 == 0) std::this_thread::yield();
          EXPECT_EQ(sum(groups[g], rank + g, 1 + sizes() % 20'000), 6 + kRanks * g) << error_text();
        }
      });
    for (int i = 0; i < 10; i++) {
      rc_comm* more = split(comm, {3, 1, 2, 0});
      EXPECT_EQ(sum(more, 1), kRanks);
      ringcoll_comm_destroy(more);
    }
    for (std::thread& thread : threads) thread.join();
    for (rc_comm* group : groups) ringcoll_comm_destroy(group);
    ringcoll_comm_destroy(comm);
  });
}

// A thread that waits for one communicator keeps none of another's waiting: opposite orders on two
// ranks, as asynchronous calls.
TEST_P(Splits, MayBeUsedInOppositeOrders) {
  world(2, [](rc_comm* comm, int rank) {
    rc_comm* parts[] = {split(comm, {0, 1}), split(comm, {1, 0})};
    for (int i = 0; i < 20; i++) {
      int64_t values[] = {1, 10};
      rc_buffer buffers[] = {{&values[0], &values[0], 1}, {&values[1], &values[1], 1}};
      rc_request* requests[2];
      for (int turn : {0, 1}) {
        int which = turn ^ rank;
        rc_call call = sum_of(&buffers[which]);
        EXPECT_EQ(ringcoll_start(parts[which], &call, &requests[which]), RC_OK) << error_text();
      }
      for (int which : {rank, 1 - rank}) {
        int done = 0;
        EXPECT_EQ(ringcoll_wait(requests[which], 20, &done), RC_OK) << error_text();
        ringcoll_request_free(requests[which]);
      }
      EXPECT_EQ(values[0], 2);
      EXPECT_EQ(values[1], 20);
    }
    for (rc_comm* part : parts) ringcoll_comm_destroy(part);
    ringcoll_comm_destroy(comm);
  });
}

}  // namespace
