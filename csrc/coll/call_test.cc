// What calls are refused: before anything is sent, and so that the communicator stays good.
#include "coll/call.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
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

std::string text_of(const Call& call) {
  auto numbers = [](std::span<const int64_t> counts) {
    return fmt::format("{}", fmt::join(counts, " "));
  };
  std::string text = describe(signature_of(call, 2, 1)) + " " + numbers(call.counts) + ", " +
                     numbers(call.recv_counts) +
                     fmt::format(" {} {} {}", call.prescale, call.postscale, call.timeout_s);
  for (const rc_buffer& b : call.buffers)
    text += fmt::format(" ({} {} {})", b.input, b.output, b.count);
  return text;
}

/// What check() says of a call, or why it refuses it.
template <typename Check>
std::string said_of(const rc_call& raw, Check&& check) {
  try {
    return text_of(check(raw));
  } catch (const Error& error) {
    return error.what();
  }
}

// One that takes what was found of the call before must not say so of another call: steps through
// calls that differ in one thing from the one before, and some in nothing but memory.
TEST(Call, IsCheckedAsIfItWereTheFirst) {
  float memory[64];
  // The last one for calls of two that begin with the second.
  rc_buffer buffers[3] = {{memory, memory + 32, 8}, {memory + 16, memory + 48, 8}, {}};
  const int64_t counts[] = {4, 4};
  const std::vector<std::function<void(rc_call&)>> changes = {
      [](rc_call&) {},
      [&](rc_call&) { std::swap(buffers[0], buffers[1]); },
      [&](rc_call&) { buffers[0].count ^= 4; },
      [&](rc_call&) { buffers[0].count ^= 12; },
      [&](rc_call&) { buffers[0].input = buffers[0].input ? nullptr : memory; },
      [&](rc_call&) { buffers[0].output = buffers[0].output ? nullptr : memory + 32; },
      [&](rc_call&) { buffers[0].output = const_cast<void*>(buffers[0].input); },
      [&](rc_call&) { buffers[0].output = memory + 4; },
      [&](rc_call&) { buffers[0].output = memory + 32; },
      [&](rc_call& c) { c.buffers = c.buffers ? nullptr : buffers; },
      [&](rc_call& c) { c.buffers = c.buffers == buffers ? buffers + 1 : buffers; },
      [](rc_call& c) { c.buffer_count = 3 - c.buffer_count; },
      [](rc_call& c) { c.dtype = RC_INT8; },
      [](rc_call& c) { c.dtype = static_cast<rc_dtype>(99); },
      [](rc_call& c) { c.dtype = RC_FLOAT32; },
      [](rc_call& c) { c.op = c.op == RC_AVERAGE ? RC_SUM : RC_AVERAGE; },
      [](rc_call& c) { c.op = RC_BIT_AND; },
      [](rc_call& c) { c.collective = RC_BROADCAST; },
      [](rc_call& c) { c.collective = RC_ALLREDUCE; },
      [](rc_call& c) { c.collective = RC_ALLGATHER; },
      [](rc_call& c) { c.collective = RC_REDUCE; },
      [](rc_call& c) { c.collective = RC_REDUCE_SCATTER; },
      [](rc_call& c) { c.collective = RC_ALLTOALL; },
      [&](rc_call&) { buffers[0].output = memory + 8; },
      [&](rc_call&) { buffers[0].input = memory + 8, buffers[0].output = memory + 16; },
      [](rc_call& c) { c.root ^= 1; },
      [](rc_call& c) { c.root = 7; },
      [&](rc_call& c) { c.counts = c.counts ? nullptr : counts; },
      [](rc_call& c) { c.prescale = c.prescale == 0 ? -0.0 : 0.0; },
      [](rc_call& c) { c.postscale = std::signbit(c.postscale) ? 0.0 : -0.0; },
      [](rc_call& c) { c.postscale = std::isnan(c.postscale) ? 1 : NAN; },
      [](rc_call& c) { c.timeout_s = c.timeout_s == 0 ? 3 : 0; },
      [](rc_call& c) { c.timeout_s = -c.timeout_s; },
  };
  rc_call raw = call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {buffers, 1});
  CallCheck check(0, 2);
  std::mt19937 random(7);
  std::map<std::string, int> seen;
  for (int i = 0; i < 20'000; i++) {
    if (i % 20 == 0) {  // or most of them are refused
      buffers[0] = {memory, memory + 32, 8};
      raw = call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {buffers, 1});
    }
    changes[random() % changes.size()](raw);
    std::string first = said_of(raw, [](const rc_call& c) { return check_call(c, 0, 2); });
    ASSERT_EQ(said_of(raw, [&](const rc_call& c) -> const Call& { return check(c); }), first)
        << "call " << i;
    seen[first]++;
  }
  EXPECT_GT(seen.size(), 200u);
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
                        {RC_SCAN, true, true, true},
                        {RC_EXSCAN, true, true, true},
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

TEST(Call, AverageOfAPrefixIsRefused) {
  float value = 0;
  rc_buffer buffer{&value, &value, 1};
  for (Collective collective : {RC_SCAN, RC_EXSCAN}) {
    rc_call raw = call_of(collective, RC_FLOAT32, RC_AVERAGE, {&buffer, 1});
    try {
      check_call(raw, 0, 2);
      ADD_FAILURE() << name_of(collective);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("pass sum"), std::string::npos) << error.what();
    }
  }
}

// `input` and `output` are elements of one array; rank 1 of 3, chunks of 1, 2 and 3 elements.
bool may_lie(Collective collective, int64_t input, int64_t output, Rank root = 1,
             std::vector<int64_t> recv_counts = {1, 2, 3}) {
  std::vector<float> memory(32);
  std::vector<int64_t> counts = {1, 2, 3};
  rc_buffer buffer{memory.data() + input, memory.data() + output, 6};
  rc_call raw = call_of(collective, RC_FLOAT32, RC_SUM, {&buffer, 1});
  raw.root = root;
  if (!traits_of(collective).is_vector()) raw.counts = counts.data();
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
  for (Collective vectors : {RC_ALLREDUCE, RC_SCAN, RC_EXSCAN}) {
    EXPECT_TRUE(may_lie(vectors, 8, 8));
    EXPECT_TRUE(may_lie(vectors, 8, 14));
    EXPECT_TRUE(may_lie(vectors, 8, 2));
    EXPECT_FALSE(may_lie(vectors, 8, 13));
    EXPECT_FALSE(may_lie(vectors, 8, 3));
  }
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
