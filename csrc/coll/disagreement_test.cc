// What ranks say when they disagree about a call, or one makes none.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "coll/world_testing.h"

namespace ringcoll {
namespace {

using testing::call_of;
using testing::Member;
using testing::run;

// What one rank passes, where another passes something else.
struct Arguments {
  Collective collective;
  int64_t count;
  DataType dtype = RC_FLOAT32;
  ReduceOp op = RC_SUM;
  Rank root = 0;
  std::vector<int64_t> counts = {};
  std::vector<int64_t> recv_counts = {};
};

struct Disagreement {
  const char* what;
  Arguments of[2];
};

const Disagreement kDisagreements[] = {
    {"count", {{RC_ALLREDUCE, 10}, {RC_ALLREDUCE, 11}}},
    {"dtype", {{RC_ALLREDUCE, 10}, {RC_ALLREDUCE, 10, RC_INT32}}},
    {"op", {{RC_ALLREDUCE, 10}, {RC_ALLREDUCE, 10, RC_FLOAT32, RC_MAX}}},
    {"op", {{RC_ALLREDUCE, 10}, {RC_ALLREDUCE, 10, RC_FLOAT32, RC_AVERAGE}}},
    {"root", {{RC_GATHER, 10, RC_FLOAT32, RC_SUM, 1}, {RC_GATHER, 10}}},
    {"collective", {{RC_ALLREDUCE, 10, RC_INT8}, {RC_REDUCE_SCATTER, 5, RC_INT8}}},
    {"barrier", {{RC_ALLREDUCE, 10}, {RC_BARRIER, 0}}},
    // Signatures are equal where counts have the same sum, or are given of an alltoall: messages
    // are not.
    {"counts",
     {{.collective = RC_ALLGATHER, .count = 10, .counts = {10, 20}},
      {.collective = RC_ALLGATHER, .count = 10, .counts = {20, 10}}}},
    {"counts",
     {{.collective = RC_REDUCE_SCATTER, .count = 10, .counts = {10, 20}},
      {.collective = RC_REDUCE_SCATTER, .count = 10, .counts = {20, 10}}}},
    {"counts",
     {{.collective = RC_GATHER, .count = 10, .counts = {10, 20}},
      {.collective = RC_GATHER, .count = 10, .counts = {20, 10}}}},
    {"counts",
     {{.collective = RC_SCATTER, .count = 10, .counts = {10, 20}},
      {.collective = RC_SCATTER, .count = 20, .counts = {20, 10}}}},
    {"sent is less than received",
     {{.collective = RC_ALLTOALL, .count = 0, .counts = {5, 7}, .recv_counts = {5, 9}},
      {.collective = RC_ALLTOALL, .count = 0, .counts = {8, 5}, .recv_counts = {8, 5}}}},
    {"sent is more than received",
     {{.collective = RC_ALLTOALL, .count = 0, .counts = {5, 7}, .recv_counts = {5, 9}},
      {.collective = RC_ALLTOALL, .count = 0, .counts = {10, 5}, .recv_counts = {6, 5}}}},
    {"nothing is sent",
     {{.collective = RC_ALLTOALL, .count = 0, .counts = {5, 0}, .recv_counts = {5, 9}},
      {.collective = RC_ALLTOALL, .count = 0, .counts = {9, 5}, .recv_counts = {1, 5}}}},
};

// A rank that only sends hears of it in the next call.
void disagree(Member& m, const Arguments& a) {
  std::vector<double> in(64), out(64);
  rc_buffer buffer{in.data(), out.data(), a.count};
  rc_call raw = call_of(a.collective, a.dtype, a.op, {&buffer, a.collective != RC_BARRIER});
  raw.root = a.root;
  if (!a.counts.empty()) raw.counts = a.counts.data();
  if (!a.recv_counts.empty()) raw.recv_counts = a.recv_counts.data();
  run(m, raw);
  run(m, call_of(RC_BARRIER, RC_UINT8, RC_SUM, {}));
}

TEST(Executor, DisagreementNamesBothSides) {
  for (const char* transport : {"shm", "tcp", "loopback"})
    for (const Disagreement& d : kDisagreements) {
      SCOPED_TRACE(fmt::format("{} of {} over {}", d.what, name_of(d.of[0].collective), transport));
      auto errors = testing::run_ranks(2, testing::test_config(transport),
                                       [&](Member& m) { disagree(m, d.of[m.rank]); });
      for (Rank r = 0; r < 2; r++) {
        ASSERT_TRUE(errors[r]) << "rank " << r;
        EXPECT_EQ(errors[r]->code(), Code::kMismatch) << errors[r]->what();
        std::string text = errors[r]->what();
        EXPECT_NE(text.find("rank 0 runs"), std::string::npos) << text;
        EXPECT_NE(text.find("rank 1 runs"), std::string::npos) << text;
      }
    }
}

// From rank 2 over 0 to 1, but for rank 0: what rank 1 gets is as expected, but for the root.
TEST(Executor, DisagreementAboutTheRootNamesBothSides) {
  std::atomic<bool> over{false};
  auto errors = testing::run_ranks(3, testing::test_config("shm", "chain"), [&](Member& m) {
    float value = 0;
    rc_buffer buffer{&value, &value, 1};
    rc_call raw = call_of(RC_BROADCAST, RC_FLOAT32, RC_SUM, {&buffer, 1});
    raw.root = m.rank == 0 ? 0 : 2;
    run(m, raw);
    if (m.rank == 1) over = true;
    while (!over && !m.comm.poisoned()) std::this_thread::yield();
    m.comm.throw_if_poisoned();
  });
  for (Rank r = 0; r < 3; r++) {
    ASSERT_TRUE(errors[r]) << "rank " << r;
    EXPECT_EQ(errors[r]->code(), Code::kMismatch) << errors[r]->what();
    std::string text = errors[r]->what();
    EXPECT_NE(text.find("rank 0 runs broadcast #1 of 1 float32, root 0"), text.npos) << text;
    EXPECT_NE(text.find("rank 1 runs broadcast #1 of 1 float32, root 2"), text.npos) << text;
  }
}

TEST(Executor, ASilentPeerIsATimeoutThatNamesIt) {
  Config config = testing::test_config("shm");
  config.timeout_s = 1.5;  // also of making the communicators
  auto errors = testing::run_ranks(3, config, [&](Member& m) {
    if (m.rank == 2) {  // alive, but never calls
      std::this_thread::sleep_for(std::chrono::milliseconds(4500));
      m.comm.throw_if_poisoned();
      return;
    }
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    run(m, call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&buffer, 1}));
  });
  for (Rank r = 0; r < 3; r++) {
    ASSERT_TRUE(errors[r]) << r;
    EXPECT_EQ(errors[r]->code(), Code::kTimeout) << errors[r]->what();
    EXPECT_EQ(errors[r]->rank(), 2) << errors[r]->what();
  }
}

TEST(Executor, APeerThatLeavesIsLostOnAllRanks) {
  for (std::string transport : {"shm", "tcp"}) {
    auto errors = testing::run_ranks(3, testing::test_config(transport), [&](Member& m) {
      float value = 1;
      rc_buffer buffer{&value, &value, 1};
      run(m, call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&buffer, 1}));
      if (m.rank == 1) return;
      run(m, call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&buffer, 1}));
    });
    EXPECT_FALSE(errors[1]);
    for (Rank r : {0, 2}) {
      ASSERT_TRUE(errors[r]) << transport << r;
      EXPECT_EQ(errors[r]->code(), Code::kPeerLost) << transport << ": " << errors[r]->what();
      EXPECT_EQ(errors[r]->rank(), 1) << transport << ": " << errors[r]->what();
    }
  }
}

}  // namespace
}  // namespace ringcoll
