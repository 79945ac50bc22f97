// Pushes, pulls and clocks of one shard.
#include "table/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/allocations_testing.h"
#include "base/error.h"
#include "base/error_testing.h"
#include "rules/float_environment.h"
#include "table/shard_testing.h"

namespace ringcoll {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::Floats;
using testing::Ids;
using testing::OwnShard;
using testing::sparse;

constexpr const char* kSum = R"({"rule": "sum"})";
constexpr const char* kAssign = R"({"rule": "assign"})";
constexpr const char* kAverage = R"({"rule": "weighted_average"})";

TableSpec dense(const std::string& fields = "") {
  return TableSpec::parse(
      R"({"name": "w", "dtype": "float32", "shape": [5], "stretch": 2, "rule": {"rule": "sum"})" +
      fields + "}");
}

TEST(Shard, AppliesWhatIsPushed) {
  OwnShard table(sparse(kSum, R"(, "initial": {"kind": "constant", "value": 10})"));
  EXPECT_EQ(table.push(1, 0, {-3, INT64_MAX}, {1, 2, 3, 4}), PushOutcome::kApplied);
  EXPECT_EQ(table.pull({INT64_MAX, -3, 0, -3}), (Floats{13, 14, 11, 12, 10, 10, 11, 12}));
  EXPECT_EQ(table.shard.row_count(), 2);  // a pull makes none
  EXPECT_EQ(table.shard.find(0), nullptr);
  EXPECT_EQ(table.push(1, 0, {}, {}), PushOutcome::kApplied);
}

TEST(Shard, APulledRowThatIsMadeLaterBeginsWithWhatWasPulled) {
  OwnShard table(
      sparse(kSum, R"(, "initial": {"kind": "normal", "mean": 0, "std": 1, "seed": 5})"));
  const Floats before = table.pull({77});
  EXPECT_NE(before, (Floats{0, 0}));
  table.push(1, 0, {77}, {0, 0});
  EXPECT_EQ(table.pull({77}), before);
}

TEST(Shard, CombinesRowsThatOccurTwiceInAPush) {
  OwnShard sum(sparse(kSum)), assign(sparse(kAssign)), average(sparse(kAverage));
  const Ids ids = {5, 4, 5, 5};
  const Floats values = {1, 2, 10, 20, 3, 4, 5, 9};
  sum.push(1, 0, ids, values);
  EXPECT_EQ(sum.pull({4, 5}), (Floats{10, 20, 9, 15}));
  assign.push(1, 0, ids, values);
  EXPECT_EQ(assign.pull({4, 5}), (Floats{10, 20, 5, 9}));
  average.push(1, 0, ids, values, 2);
  EXPECT_EQ(average.pull({4, 5}), (Floats{10, 20, 3, 5}));
  // One step of an optimizer: momentum counts once.
  OwnShard sgd(sparse(R"({"rule": "sgd", "lr": 1, "momentum": 0.5})"));
  sgd.push(1, 0, {1, 1}, {1, 2, 3, 4});
  sgd.push(1, 0, {1}, {0, 0});
  EXPECT_EQ(sgd.pull({1}), (Floats{-6, -9}));
}

TEST(Shard, SumsRowsOfEveryType) {
  for (int i = 0; i < RC_DTYPE_COUNT; i++) {
    const auto dtype = static_cast<DataType>(i);
    TableSpec spec = sparse(kSum);
    spec.dtype = dtype;
    OwnShard table(spec);
    const auto filled = [&](double value, int64_t elements) {
      const FloatEnvironment environment;
      std::vector<std::byte> row(static_cast<size_t>(elements) * size_of(dtype));
      Initial{.kind = Initial::Kind::kConstant, .first = value}.fill(dtype, 0, row.data(),
                                                                     elements);
      return row;
    };
    const Ids ids = {5, -1, 5};
    const auto ones = filled(1, 6);
    table.shard.push(1, 1, 0, {ids, dtype, ones});
    std::vector<std::byte> out(2 * size_of(dtype));
    const Ids five = {5};
    EXPECT_EQ(table.shard.pull(std::nullopt, five, out), std::nullopt);
    EXPECT_EQ(out, filled(dtype == RC_BOOL ? 1 : 2, 2)) << name_of(dtype);
  }
}

TEST(Shard, APushThatComesAgainIsNotApplied) {
  OwnShard table(sparse(kSum));
  const Floats one = {1, 1};
  const Ids ids = {3};
  const auto push = [&](int64_t client, int64_t number) {
    return table.shard.push(client, number, 0, {ids, RC_FLOAT32, bytes_of(one)});
  };
  EXPECT_EQ(push(1, 5), PushOutcome::kApplied);
  EXPECT_EQ(push(1, 5), PushOutcome::kRepeated);
  EXPECT_EQ(push(1, 4), PushOutcome::kRepeated);
  EXPECT_EQ(push(2, 5), PushOutcome::kApplied);  // another client
  EXPECT_EQ(push(1, 9), PushOutcome::kApplied);  // what is between went to other shards
  EXPECT_EQ(table.pull({3}), (Floats{3, 3}));
  table.shard.forget(1);
  EXPECT_EQ(push(1, 9), PushOutcome::kApplied);
  EXPECT_EQ(push(2, 5), PushOutcome::kRepeated);
}

TEST(Shard, PassesNanOnAndCountsIt) {
  OwnShard table(sparse(kSum));
  table.push(1, 0, {3, 4}, {std::nanf(""), 1, 2, std::nanf("")});
  EXPECT_EQ(table.shard.counters().nan_values, 2);
  const Floats row = table.pull({3});
  EXPECT_TRUE(std::isnan(row[0]));
  EXPECT_EQ(row[1], 1);
}

TEST(Shard, DoesNotDependOnTheRoundingOfItsThread) {
  const TableSpec spec = sparse(
      R"({"rule": "adam"})", R"(, "initial": {"kind": "normal", "mean": 0, "std": 1, "seed": 5})");
  OwnShard nearest(spec), upward(spec);
  const Ids ids = {1, 2, 1};
  const Floats values = {0.1F, 0.2F, 0.3F, 0.4F, 0.7F, 0.9F};
  nearest.push(1, 0, ids, values);
  const Floats absent = nearest.pull({3});
  std::fesetround(FE_UPWARD);
  upward.push(1, 0, ids, values);
  const Floats absent_upward = upward.pull({3});
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(upward.shard.digest(), nearest.shard.digest());
  EXPECT_EQ(absent_upward, absent);
}

TEST(Shard, ADenseOneHasARangeOfRows) {
  OwnShard table(dense(), {1, 2});
  EXPECT_EQ(table.push(1, 0, {2, 1}, {5, 1, 2}), PushOutcome::kApplied);  // row 2 has one element
  EXPECT_EQ(table.pull({1, 2}), (Floats{1, 2, 5}));
  EXPECT_EQ(error_of([] { OwnShard(dense(), {2, 2}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { OwnShard(dense(), {-1, 2}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(OwnShard(dense(), {3, 0}).shard.row_count(), 0);
}

// ---- clocks

TEST(Shard, WithoutStalenessAClockIsOneStepWhateverTheOrderOfArrival) {
  const std::string sgd = R"({"rule": "sgd", "lr": 0.5, "momentum": 0.9})";
  const std::vector<Floats> gradients = {{1e8F, 0.1F}, {1, 0.2F}, {-1e8F, 0.3F}};
  std::vector<size_t> order = {0, 1, 2};
  OwnShard expected(sparse(sgd));
  Floats sum = gradients[0];
  for (size_t i = 0; i < 2; i++) sum[i] = sum[i] + gradients[1][i] + gradients[2][i];
  for (int clock = 0; clock < 3; clock++) expected.push(0, 0, {7}, sum);
  do {
    OwnShard table(sparse(sgd, R"(, "staleness": 0)"));
    for (int64_t worker = 0; worker < 3; worker++) table.shard.join(worker);
    for (int64_t clock = 0; clock < 3; clock++) {
      const Floats before = table.pull({7});
      for (const size_t worker : order) {
        const auto id = static_cast<int64_t>(worker);
        EXPECT_EQ(table.push(id, clock, {7}, gradients[worker]), PushOutcome::kWaits);
        EXPECT_EQ(table.pull({7}), before);
        EXPECT_EQ(table.waits_for(clock + 1), clock);
        table.shard.tick(id, clock);
      }
      EXPECT_EQ(table.waits_for(clock + 1), std::nullopt);
    }
    EXPECT_EQ(table.pull({7}), expected.pull({7}));
  } while (std::ranges::next_permutation(order).found);
}

TEST(Shard, AClockTakesTheLastAssignmentAndAllWeights) {
  OwnShard assign(sparse(kAssign, R"(, "staleness": 0)"));
  OwnShard average(sparse(kAverage, R"(, "staleness": 0)"));
  for (OwnShard* table : {&assign, &average}) {
    const bool weighs = table == &average;
    table->shard.join(1);
    table->shard.join(2);
    table->push(2, 0, {9}, {4, 4}, weighs ? 3 : 1);
    table->push(1, 0, {9}, {8, 8});
    table->shard.tick(1, 0);
    table->shard.tick(2, 0);
  }
  EXPECT_EQ(assign.pull({9}), (Floats{4, 4}));  // of the last worker, not the last that came
  EXPECT_EQ(average.pull({9}), (Floats{5, 5}));
}

TEST(Shard, AWorkerThatDiesTakesAnUnfinishedClockWithIt) {
  OwnShard table(sparse(kSum, R"(, "staleness": 0)"));
  for (int64_t worker = 0; worker < 3; worker++) table.shard.join(worker);
  for (int64_t worker = 0; worker < 3; worker++) table.push(worker, 0, {0}, {1, 1});
  table.shard.tick(0, 0);
  table.shard.tick(1, 0);
  table.push(1, 1, {0}, {10, 10});
  table.shard.leave(1);  // it has finished clock 0, and not clock 1
  EXPECT_EQ(table.pull({0}), (Floats{0, 0}));
  table.shard.leave(2);  // it has finished nothing, and clock 0 is complete without it
  EXPECT_EQ(table.pull({0}), (Floats{2, 2}));
  table.shard.tick(0, 1);
  EXPECT_EQ(table.pull({0}), (Floats{2, 2}));
}

TEST(Shard, AWorkerThatComesAgainBeginsTheClockAnew) {
  OwnShard table(sparse(kSum, R"(, "staleness": 0)"));
  table.shard.join(0);
  table.shard.join(1);
  table.push(1, 0, {0}, {1, 1});
  table.shard.tick(1, 0);
  table.shard.leave(1);
  table.shard.join(1);
  EXPECT_EQ(table.push(1, 0, {0}, {1, 1}), PushOutcome::kWaits);
  table.shard.tick(1, 0);
  table.shard.tick(0, 0);
  EXPECT_EQ(table.pull({0}), (Floats{1, 1}));
}

TEST(Shard, WhatComesAfterTheQuorumIsLate) {
  OwnShard table(sparse(kSum, R"(, "staleness": 0, "quorum": 1, "grace_s": 1)"));
  table.shard.join(0);
  table.shard.join(1);
  table.push(0, 0, {0}, {1, 1});
  table.push(1, 0, {0}, {10, 10});  // without a tick
  table.shard.tick(0, 0);
  table.shard.end_grace(0);
  EXPECT_EQ(table.shard.current_clock(), 1);
  EXPECT_EQ(table.push(1, 0, {0}, {20, 20}), PushOutcome::kLate);
  EXPECT_EQ(table.shard.counters().late_pushes, 2);
  EXPECT_EQ(table.pull({0}), (Floats{1, 1}));
  EXPECT_EQ(table.push(1, 1, {0}, {30, 30}), PushOutcome::kWaits);
  table.shard.tick(1, 1);
  table.shard.tick(0, 1);
  EXPECT_EQ(table.pull({0}), (Floats{31, 31}));
}

TEST(Shard, WithStalenessPushesAreAppliedWhenTheyCome) {
  OwnShard table(sparse(kSum, R"(, "staleness": 1)"));
  table.shard.join(0);
  table.shard.join(1);
  EXPECT_EQ(table.push(0, 0, {0}, {1, 1}), PushOutcome::kApplied);
  table.shard.tick(0, 0);
  EXPECT_EQ(table.waits_for(1), std::nullopt);
  table.shard.tick(0, 1);
  EXPECT_EQ(table.waits_for(2), 0);
  EXPECT_EQ(table.pull({0}), (Floats{1, 1}));  // a reader that is no worker waits for nothing
  table.shard.leave(1);
  EXPECT_EQ(table.waits_for(2), std::nullopt);
}

TEST(Shard, APullThatWaitsWritesNothing) {
  OwnShard table(sparse(kSum, R"(, "staleness": 0)"));
  table.shard.join(0);
  const Ids ids = {1};
  Floats out = {7, 7};
  EXPECT_EQ(table.shard.pull(1, ids, std::as_writable_bytes(std::span(out))), 0);
  EXPECT_EQ(out, (Floats{7, 7}));
}

// ---- rules

TEST(Shard, TheLearningRateChangesInMidRun) {
  OwnShard table(sparse(R"({"rule": "sgd", "lr": 1})"));
  table.push(1, 0, {0}, {1, 1});
  table.set_rule(Rule(rules::Sgd{.lr = 0.5}));
  table.push(1, 0, {0}, {1, 1});
  EXPECT_EQ(table.pull({0}), (Floats{-1.5, -1.5}));
}

// ---- errors

TEST(Shard, BadPushesChangeNothing) {
  OwnShard table(sparse(kSum, R"(, "staleness": 0)")), rows(dense(), {1, 2});
  table.shard.join(1);
  table.push(1, 0, {3}, {1, 2});
  table.shard.tick(1, 0);
  const uint64_t digest = table.shard.digest(), of_rows = rows.shard.digest();
  const Floats two = {1, 2};
  const Ids ids = {3};
  const auto refused = [](OwnShard& to, int64_t clock, const Ids& which, const Floats& values,
                          double weight = 1, int64_t client = 1) {
    const Error error = error_of([&] { to.push(client, clock, which, values, weight); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return std::string(error.what());
  };
  EXPECT_EQ(refused(rows, 0, {1, 0}, {1, 2, 3, 4}),
            "table w: row 0 is not here: the table has rows 0 to 2, and this shard 2 of them");
  refused(rows, 0, {-1}, {1, 2});
  refused(rows, 0, {3}, {1, 2});
  EXPECT_EQ(refused(table, 1, {3}, {1}),
            "table t: 4 bytes for 1 rows: a row has 2 elements of float32");
  refused(table, 1, {3}, {1, 2, 3});
  refused(table, 1, {}, {1});
  refused(table, 1, {3}, {1, 2}, 2);
  refused(table, 2, {3}, {1, 2});        // not its clock
  refused(table, 1, {3}, {1, 2}, 1, 2);  // no worker
  EXPECT_EQ(error_of([&] { table.shard.push(1, 99, 1, {ids, RC_FLOAT64, bytes_of(two)}); }).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { table.shard.tick(1, 2); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(table.shard.digest(), digest);
  EXPECT_EQ(rows.shard.digest(), of_rows);
  EXPECT_EQ(table.push(1, 1, {3}, {1, 2}), PushOutcome::kWaits);
}

TEST(Shard, AFinishedClockTakesNoMorePushes) {
  OwnShard table(sparse(kSum, R"(, "staleness": 0)"));
  table.shard.join(0);
  table.shard.join(1);
  table.shard.tick(0, 0);
  EXPECT_NE(std::string(error_of([&] { table.push(0, 0, {3}, {1, 2}); }).what())
                .find("pushes to clock 0, which it has finished"),
            std::string::npos);
}

TEST(Shard, PushesOfAClockHaveOneType) {
  OwnShard table(TableSpec::parse(
      R"({"name": "h", "dtype": "float16", "row_shape": [2], "rule": {"rule": "sum"},
          "staleness": 0})"));
  table.shard.join(0);
  table.shard.join(1);
  table.push(0, 0, {3}, {1, 2});
  const std::vector<uint16_t> halves = {0x3c00, 0x3c00};
  const Ids ids = {3};
  const PushedRows pushed{ids, RC_FLOAT16, std::as_bytes(std::span(halves))};
  EXPECT_STREQ(error_of([&] { table.shard.push(1, 1, 0, pushed); }).what(),
               "table h: worker 1 pushes float16 to clock 0, and another one has pushed float32: "
               "pushes of a clock must have one type");
}

/// Every allocation of an operation fails once. All of them must leave the shard as it was.
void expect_all_or_nothing(const std::function<void(OwnShard&)>& prepare,
                           const std::function<void(OwnShard&)>& operation, const TableSpec& spec) {
  OwnShard expected(spec);
  prepare(expected);
  operation(expected);
  OwnShard table(spec);
  prepare(table);
  int failures = 0;
  for (bool done = false; !done; failures++) {
    const uint64_t digest = table.shard.digest();
    testing::fail_allocation_after(failures);
    try {
      operation(table);
      done = true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kRefused);
    } catch (const std::bad_alloc&) {
      // By what the test itself allocates.
    }
    testing::fail_allocation_after(-1);
    if (!done) {
      ASSERT_EQ(table.shard.digest(), digest) << failures;
    }
  }
  EXPECT_GT(failures, 2);
  EXPECT_EQ(table.shard.digest(), expected.shard.digest());
}

TEST(Shard, WithoutMemoryNothingChanges) {
  const Ids ids = {1, 2, 2, 3};
  const Floats values = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto push = [&](OwnShard& table, int64_t client, int64_t number) {
    table.shard.push(client, number, 0, {ids, RC_FLOAT32, bytes_of(values)});
  };
  const TableSpec adam = sparse(R"({"rule": "adam"})", R"(, "max_rows": 2)");
  expect_all_or_nothing([](OwnShard&) {}, [&](OwnShard& table) { push(table, 1, 1); }, adam);
  const TableSpec strict = sparse(R"({"rule": "adam"})", R"(, "staleness": 0)");
  const auto join = [&](OwnShard& table) {
    table.shard.join(1);
    table.shard.join(2);
  };
  const auto push_both = [&](OwnShard& table) {
    join(table);
    push(table, 1, 1);
    push(table, 2, 1);
    table.shard.tick(1, 0);
  };
  expect_all_or_nothing(join, [&](OwnShard& table) { push(table, 2, 1); }, strict);
  expect_all_or_nothing(push_both, [](OwnShard& table) { table.shard.tick(2, 0); }, strict);
  expect_all_or_nothing(push_both, [](OwnShard& table) { table.shard.leave(2); }, strict);
}

TEST(Shard, SaysThatMemoryForValuesIsLacking) {
  OwnShard table(sparse(kSum), {}, std::pmr::null_memory_resource());
  const Error error = error_of([&] { table.push(1, 0, {3}, {1, 2}); });
  EXPECT_EQ(error.code(), Code::kRefused);
  EXPECT_NE(std::string(error.what()).find("memory is lacking for rows of 8 bytes"),
            std::string::npos);
  EXPECT_EQ(table.shard.row_count(), 0);
  EXPECT_EQ(error_of([] { OwnShard(dense(), {0, 3}, std::pmr::null_memory_resource()); }).code(),
            Code::kRefused);
}

}  // namespace
}  // namespace ringcoll
