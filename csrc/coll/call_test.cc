// What calls are refused: before anything is sent, and so that the communicator stays good.
#include "coll/call.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "coll/world_testing.h"

namespace ringcoll {
namespace {

using testing::call_of;

TEST(Call, RefusesWhatCannotBe) {
  float value = 0;
  rc_buffer buffer{&value, &value, 1};
  auto refused = [&](auto change) {
    rc_call raw = call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&buffer, 1});
    change(raw);
    try {
      check_call(raw, 0, 2);
    } catch (const Error& error) {
      return error.code() == Code::kInvalidArgument;
    }
    return false;
  };
  EXPECT_FALSE(refused([](rc_call&) {}));
  EXPECT_TRUE(refused([](rc_call& c) { c.dtype = static_cast<rc_dtype>(99); }));
  EXPECT_TRUE(refused([](rc_call& c) { c.op = RC_BIT_AND; }));
  EXPECT_TRUE(refused([](rc_call& c) { c.buffers = nullptr; }));
  EXPECT_TRUE(refused([](rc_call& c) { c.prescale = NAN; }));
  EXPECT_TRUE(refused([](rc_call& c) { c.timeout_s = -1; }));
  EXPECT_TRUE(refused([](rc_call& c) { c.timeout_s = NAN; }));
  EXPECT_FALSE(refused([](rc_call& c) { c.timeout_s = INFINITY; }));
  EXPECT_TRUE(refused([](rc_call& c) {
    c.collective = RC_BROADCAST;
    c.root = 2;
  }));
  EXPECT_TRUE(refused([](rc_call& c) {
    c.collective = RC_GATHER;
    c.root = -1;
  }));
  EXPECT_TRUE(refused([](rc_call& c) { c.collective = RC_BARRIER; }));
  rc_buffer bad{nullptr, &value, 1};
  EXPECT_TRUE(refused([&](rc_call& c) { c.buffers = &bad; }));
  rc_buffer negative{&value, &value, -1};
  EXPECT_TRUE(refused([&](rc_call& c) { c.buffers = &negative; }));
  rc_buffer two[] = {buffer, buffer};
  auto of_two = [&](rc_call& c) { c.buffers = two, c.buffer_count = 2; };
  EXPECT_FALSE(refused(of_two));
  EXPECT_TRUE(refused([&](rc_call& c) { of_two(c), c.collective = RC_ALLGATHER; }));
}

TEST(Call, RefusesCountsThatCannotBe) {
  const int64_t good[] = {1, 1}, bad[] = {2, -1};
  std::vector<float> in(2), out(2);
  rc_buffer buffer{in.data(), out.data(), 1};
  auto refused = [&](Collective collective, const int64_t* counts, const int64_t* recv_counts) {
    rc_call raw = call_of(collective, RC_FLOAT32, RC_SUM, {&buffer, 1});
    raw.counts = counts;
    raw.recv_counts = recv_counts;
    try {
      check_call(raw, 0, 2);
    } catch (const Error& error) {
      return error.code() == Code::kInvalidArgument;
    }
    return false;
  };
  EXPECT_FALSE(refused(RC_ALLGATHER, good, nullptr));
  EXPECT_TRUE(refused(RC_ALLGATHER, bad, nullptr));
  EXPECT_FALSE(refused(RC_ALLTOALL, good, good));
  EXPECT_TRUE(refused(RC_ALLTOALL, bad, good));
  EXPECT_TRUE(refused(RC_ALLTOALL, good, bad));
  EXPECT_TRUE(refused(RC_ALLTOALL, good, nullptr));
  EXPECT_TRUE(refused(RC_ALLTOALL, nullptr, good));
}

// Only where a rank reads or writes, and has elements, memory must be named.
TEST(Call, RefusesMemoryThatIsMissing) {
  float value = 0;
  auto allowed = [&](Collective collective, bool root, const float* input, float* output,
                     int64_t count, std::vector<int64_t> counts = {},
                     std::vector<int64_t> recv_counts = {}) {
    rc_buffer buffer{input, output, count};
    rc_call raw = call_of(collective, RC_FLOAT32, RC_SUM, {&buffer, 1});
    raw.root = root ? 0 : 1;
    if (!counts.empty()) raw.counts = counts.data();
    if (!recv_counts.empty()) raw.recv_counts = recv_counts.data();
    try {
      check_call(raw, 0, 2);
    } catch (const Error& error) {
      return false;
    }
    return true;
  };
  struct Case {
    Collective collective;
    bool root, needs_input, needs_output;
  };
  for (const Case& c : {Case{RC_ALLREDUCE, true, true, true},
                        {RC_ALLGATHER, true, true, true},
                        {RC_REDUCE_SCATTER, true, true, true},
                        {RC_ALLTOALL, true, true, true},
                        {RC_BROADCAST, true, true, false},
                        {RC_BROADCAST, false, false, true},
                        {RC_REDUCE, true, true, true},
                        {RC_REDUCE, false, true, false},
                        {RC_GATHER, true, true, true},
                        {RC_GATHER, false, true, false},
                        {RC_SCATTER, true, true, true},
                        {RC_SCATTER, false, false, true}}) {
    SCOPED_TRACE(fmt::format("{}, root {}", name_of(c.collective), c.root));
    EXPECT_EQ(allowed(c.collective, c.root, nullptr, &value, 1), !c.needs_input);
    EXPECT_EQ(allowed(c.collective, c.root, &value, nullptr, 1), !c.needs_output);
    EXPECT_TRUE(allowed(c.collective, c.root, nullptr, nullptr, 0));
  }
  EXPECT_TRUE(allowed(RC_ALLGATHER, true, nullptr, &value, 0, {0, 1})) << "none of its own";
  EXPECT_FALSE(allowed(RC_ALLGATHER, true, nullptr, nullptr, 0, {0, 1}));
  EXPECT_TRUE(allowed(RC_REDUCE_SCATTER, true, &value, nullptr, 0, {0, 1}));
  EXPECT_FALSE(allowed(RC_REDUCE_SCATTER, true, nullptr, nullptr, 0, {0, 1}));
  EXPECT_TRUE(allowed(RC_ALLTOALL, true, nullptr, &value, 0, {0, 0}, {0, 1}));
  EXPECT_FALSE(allowed(RC_ALLTOALL, true, nullptr, nullptr, 0, {0, 0}, {0, 1}));
  EXPECT_FALSE(allowed(RC_ALLTOALL, true, nullptr, &value, 0, {0, 1}, {0, 1}));
}

// `input` and `output` are elements of one array; rank 1 of 3, chunks of 1, 2 and 3 elements.
bool may_lie(Collective collective, int64_t input, int64_t output, Rank root = 1,
             std::vector<int64_t> recv_counts = {1, 2, 3}) {
  std::vector<float> memory(32);
  std::vector<int64_t> counts = {1, 2, 3};
  rc_buffer buffer{memory.data() + input, memory.data() + output, 6};
  rc_call raw = call_of(collective, RC_FLOAT32, RC_SUM, {&buffer, 1});
  raw.root = root;
  if (collective != RC_ALLREDUCE) raw.counts = counts.data();
  if (collective == RC_ALLTOALL) raw.recv_counts = recv_counts.data();
  try {
    check_call(raw, 1, 3);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("overlap"), std::string::npos) << error.what();
    return false;
  }
}

TEST(Call, OverlapOtherThanInPlaceIsRefused) {
  EXPECT_TRUE(may_lie(RC_ALLREDUCE, 8, 8));
  EXPECT_TRUE(may_lie(RC_ALLREDUCE, 8, 14));
  EXPECT_TRUE(may_lie(RC_ALLREDUCE, 8, 2));
  EXPECT_FALSE(may_lie(RC_ALLREDUCE, 8, 13));
  EXPECT_FALSE(may_lie(RC_ALLREDUCE, 8, 3));
  for (Collective gathers : {RC_ALLGATHER, RC_GATHER}) {
    EXPECT_TRUE(may_lie(gathers, 9, 8)) << "own chunk, at its place";
    EXPECT_FALSE(may_lie(gathers, 8, 8));
    EXPECT_TRUE(may_lie(gathers, 14, 8));
    EXPECT_FALSE(may_lie(gathers, 13, 8));
  }
  EXPECT_TRUE(may_lie(RC_GATHER, 8, 8, 0)) << "its output is not used";
  for (Collective scatters : {RC_REDUCE_SCATTER, RC_SCATTER}) {
    EXPECT_TRUE(may_lie(scatters, 8, 9)) << "own chunk, at its place";
    EXPECT_FALSE(may_lie(scatters, 8, 8));
    EXPECT_TRUE(may_lie(scatters, 8, 6));
    EXPECT_FALSE(may_lie(scatters, 8, 7));
  }
  EXPECT_TRUE(may_lie(RC_SCATTER, 8, 8, 0)) << "its input is not used";
  EXPECT_TRUE(may_lie(RC_ALLTOALL, 8, 8));
  EXPECT_FALSE(may_lie(RC_ALLTOALL, 8, 8, 1, {3, 2, 1})) << "other places";
  EXPECT_TRUE(may_lie(RC_ALLTOALL, 8, 14, 1, {3, 2, 1}));
}

}  // namespace
}  // namespace ringcoll
