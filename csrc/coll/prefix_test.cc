// Scans and exscans of all types, operations and sizes, scaled, and where ranks are not in the
// order of the ring.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "coll/world_testing.h"
#include "reduce/reduce.h"

namespace ringcoll {
namespace {

using testing::Bytes;
using testing::call_of;
using testing::Member;
using testing::run;

bool has_op(DataType dtype, ReduceOp op) {
  bool is_float =
      dtype == RC_FLOAT16 || dtype == RC_BFLOAT16 || dtype == RC_FLOAT32 || dtype == RC_FLOAT64;
  return !is_float || (op != RC_BIT_AND && op != RC_BIT_OR);
}

struct Case {
  Collective collective;
  DataType dtype;
  ReduceOp op;
};

/// All types on few ranks, and two on many.
std::vector<Case> cases_of(Rank size) {
  std::vector<Case> cases;
  for (Collective collective : {RC_SCAN, RC_EXSCAN})
    for (int d = 0; d < RC_DTYPE_COUNT; d++)
      for (ReduceOp op : {RC_SUM, RC_MIN, RC_MAX, RC_PRODUCT, RC_BIT_AND, RC_BIT_OR}) {
        auto dtype = static_cast<DataType>(d);
        bool tried = size <= 4 || dtype == RC_INT32 || dtype == RC_FLOAT16;
        if (tried && has_op(dtype, op)) cases.push_back({collective, dtype, op});
      }
  return cases;
}

double input_of(const Case& c, Rank rank, int64_t i) {
  double value = testing::contribution(c.op, rank, i);
  return c.dtype == RC_BOOL && value != 0 ? 1 : value;
}

double expected_of(const Case& c, Rank rank, int64_t i) {
  Rank inputs = c.collective == RC_SCAN ? rank + 1 : rank;
  if (inputs > 0) return testing::combined(c.op, c.dtype, inputs, i);
  Bytes neutral(size_of(c.dtype));
  fill_neutral(c.dtype, c.op, neutral.data(), 1);
  return testing::get(c.dtype, neutral, 0);
}

void try_case(Member& m, const Case& c, int64_t count, bool in_place) {
  Bytes input(count * size_of(c.dtype)), output(input.size());
  for (int64_t i = 0; i < count; i++) testing::put(c.dtype, input, i, input_of(c, m.rank, i));
  if (in_place) output = input;
  rc_buffer buffer{in_place ? output.data() : input.data(), output.data(), count};
  run(m, call_of(c.collective, c.dtype, c.op, {&buffer, 1}));
  for (int64_t i = 0; i < count; i++)
    ASSERT_EQ(testing::get(c.dtype, output, i), expected_of(c, m.rank, i))
        << name_of(c.collective) << " " << name_of(c.dtype) << " " << name_of(c.op) << " element "
        << i << " on rank " << m.rank << " of " << m.size;
}

TEST(Prefixes, AreThoseOfEveryTypeAndOp) {
  for (Rank size = 1; size <= 17; size++)
    for (const char* row : {"chain", "recursive_doubling"})
      testing::run_world(size, testing::test_config(size % 2 ? "loopback" : "shm", row),
                         [&](Member& m) {
                           for (const Case& c : cases_of(size))
                             for (int64_t count : {0, 1, 1009})
                               try_case(m, c, count, row[0] == 'c');
                         });
}

TEST(Prefixes, AreScaledWhereTheyReachAnOutput) {
  for (const char* row : {"scan=chain,exscan=chain", "recursive_doubling"})
    testing::run_world(4, testing::test_config("tcp", row), [](Member& m) {
      for (int64_t count : {1, 5, 100000}) {
        std::vector<float> in(count, 1.0f + m.rank), out(count);
        rc_buffer buffer{in.data(), out.data(), count};
        rc_call raw = call_of(RC_SCAN, RC_FLOAT32, RC_SUM, {&buffer, 1});
        raw.prescale = 0.5;
        raw.postscale = 8;
        run(m, raw);
        auto sum = [](Rank ranks) { return 2.0f * static_cast<float>(ranks * (ranks + 1)); };
        EXPECT_EQ(std::ranges::count(out, sum(m.rank + 1)), count);
        raw.collective = RC_EXSCAN;
        run(m, raw);
        EXPECT_EQ(std::ranges::count(out, sum(m.rank)), count);
        buffer.input = out.data();
        out = in;
        raw.op = RC_PRODUCT;
        raw.prescale = 1;
        run(m, raw);
        constexpr float kProducts[] = {1, 8 * 1, 8 * 2, 8 * 6};
        EXPECT_EQ(std::ranges::count(out, kProducts[m.rank]), count) << out[0];
      }
    });
}

// Ranks lie crosswise on two hosts, so that their order is not that of the ring.
TEST(Prefixes, GoByTheOrderOfRanks) {
  for (const char* row : {"chain", "recursive_doubling"})
    testing::run_world(
        7, testing::test_config("auto", row),
        [](Member& m) {
          std::vector<int32_t> in(1000, 1 << m.rank), out(1000);
          std::array<rc_buffer, 2> buffers = {rc_buffer{in.data(), out.data(), 300},
                                              {in.data() + 300, out.data() + 300, 700}};
          run(m, call_of(RC_SCAN, RC_INT32, RC_SUM, buffers));
          EXPECT_EQ(std::ranges::count(out, (2 << m.rank) - 1), 1000);
          run(m, call_of(RC_EXSCAN, RC_INT32, RC_SUM, buffers));
          EXPECT_EQ(std::ranges::count(out, (1 << m.rank) - 1), 1000);
        },
        [](Rank rank) { return rank % 2 ? "odd" : "even"; });
}

}  // namespace
}  // namespace ringcoll
