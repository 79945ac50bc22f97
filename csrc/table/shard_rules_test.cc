// Rules that change, custom rules, and values that are assigned.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/error_testing.h"
#include "rules/custom_rule_testing.h"
#include "table/shard_testing.h"

namespace ringcoll {
namespace {

using testing::bytes_of;
using testing::Counting;
using testing::encoded;
using testing::error_of;
using testing::Floats;
using testing::Ids;
using testing::OwnShard;
using testing::sparse;

constexpr const char* kSum = R"({"rule": "sum"})";
constexpr const char* kAdam = R"({"rule": "adam", "lr": 0.1})";
constexpr const char* kMerge = R"({"rule": "assign", "combine": "sum"})";

PushOutcome assign(OwnShard& table, int64_t client, const Ids& ids, const Floats& values) {
  return table.shard.assign(client, ++table.number, {ids, RC_FLOAT32, bytes_of(values)});
}

/// A shard that has gone through a snapshot and its bytes.
void expect_copy_is_equal(OwnShard& table) {
  const auto bytes = encoded(table.shard.snapshot());
  TableSpec described = table.shard.spec();
  described.rule = Rule(rules::Sum{});  // the snapshot has the rule as it is now
  OwnShard copy(described, {}, decode(described, bytes));
  EXPECT_EQ(copy.shard.digest(), table.shard.digest());
  EXPECT_EQ(encoded(copy.shard.snapshot()), bytes);
}

TEST(Merging, TheSumOfAPushIsAssigned) {
  OwnShard table(sparse(kMerge));
  table.push(1, 0, {5, 4, 5}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(table.pull({5, 4}), (Floats{6, 8, 3, 4}));
  table.push(1, 0, {5}, {1, 1});
  EXPECT_EQ(table.pull({5}), (Floats{1, 1}));
}

TEST(Merging, TheSumOfAClockIsAssigned) {
  OwnShard table(sparse(kMerge, R"(, "staleness": 0)"));
  for (const int64_t worker : {1, 2}) table.shard.join(worker);
  for (int64_t clock = 0; clock < 2; clock++) {
    table.push(1, clock, {5}, {1, 2});
    table.push(2, clock, {5}, {10, 20});
    for (const int64_t worker : {1, 2}) table.shard.tick(worker, clock);
    EXPECT_EQ(table.pull({5}), (Floats{11, 22}));
  }
}

// ---- assign

TEST(ShardAssign, SetsValuesAndKeepsWhatTheRuleKeeps) {
  OwnShard table(sparse(kAdam)), other(sparse(kAdam));
  for (OwnShard* one : {&table, &other}) one->push(1, 0, {3}, {1, 2});
  EXPECT_EQ(assign(table, 1, {3, 8, 3}, {9, 9, 7, 7, 5, 6}), PushOutcome::kApplied);
  EXPECT_EQ(table.pull({3, 8}), (Floats{5, 6, 7, 7}));
  const Floats before = other.pull({3});
  for (OwnShard* one : {&table, &other}) one->push(1, 0, {3}, {0.5, 0.25});
  const Floats moved = table.pull({3}), reference = other.pull({3});
  for (size_t i = 0; i < 2; i++)
    EXPECT_NEAR(moved[i] - (i ? 6 : 5), reference[i] - before[i], 1e-6);
  expect_copy_is_equal(table);
}

TEST(ShardAssign, IsDoneOnceAndAtOnce) {
  OwnShard table(sparse(kSum, R"(, "staleness": 0)"));
  table.shard.join(1);
  table.push(1, 0, {3}, {1, 1});
  assign(table, 1, {3}, {5, 5});
  EXPECT_EQ(table.pull({3}), (Floats{5, 5}));
  table.number--;
  EXPECT_EQ(assign(table, 1, {3}, {6, 6}), PushOutcome::kRepeated);
  table.shard.tick(1, 0);
  EXPECT_EQ(table.pull({3}), (Floats{6, 6}));  // the push has waited
}

TEST(ShardAssign, TakesPlaceInAFullTable) {
  OwnShard table(sparse(kSum, R"(, "max_rows": 2)"));
  assign(table, 1, {1, 2, 3}, {1, 1, 2, 2, 3, 3});
  EXPECT_EQ(table.shard.row_count(), 2);
  EXPECT_EQ(table.pull({2, 3}), (Floats{2, 2, 3, 3}));
  EXPECT_EQ(table.shard.counters().evicted_rows, 1);
}

TEST(ShardAssign, CountsNanAndRefusesWhatDoesNotFit) {
  OwnShard table(sparse(kSum));
  assign(table, 1, {1}, {1, NAN});
  EXPECT_EQ(table.shard.counters().nan_values, 1);
  const uint64_t digest = table.shard.digest();
  const Ids ids = {1};
  const Floats three(3), four(4);
  for (const PushedRows& bad :
       {PushedRows{ids, RC_FLOAT32, bytes_of(three)}, PushedRows{ids, RC_FLOAT64, bytes_of(four)}})
    EXPECT_EQ(error_of([&] { table.shard.assign(1, 99, bad); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(table.shard.digest(), digest);
}

// ---- other rules

TEST(ShardRule, OfAnotherKindBeginsWithNewState) {
  OwnShard table(sparse(kSum)), fresh(sparse(kAdam));
  table.push(1, 0, {3}, {1, 2});
  table.set_rule(Rule::parse(kAdam));
  EXPECT_EQ(table.pull({3}), (Floats{1, 2}));
  assign(fresh, 1, {3}, {1, 2});
  for (OwnShard* one : {&table, &fresh}) one->push(1, 0, {3, 4}, {1, 2, 3, 4});
  EXPECT_EQ(table.pull({3, 4}), fresh.pull({3, 4}));
  expect_copy_is_equal(table);
  table.set_rule(Rule::parse(R"({"rule": "sgd", "lr": 1, "momentum": 0.5})"));
  const Floats before = table.pull({4});
  table.push(1, 0, {4}, {1, 1});
  EXPECT_EQ(table.pull({4}), (Floats{before[0] - 1, before[1] - 1}));  // the first push of it
  expect_copy_is_equal(table);
}

TEST(ShardRule, WithOtherParametersKeepsState) {
  OwnShard table(sparse(R"({"rule": "sgd", "lr": 1, "momentum": 0.5})"));
  table.push(1, 0, {3}, {1, 1});
  table.set_rule(Rule(rules::Sgd{.lr = 2, .momentum = 0.5}));
  table.push(1, 0, {3}, {1, 1});
  EXPECT_EQ(table.pull({3}), (Floats{-4, -4}));  // -1 - 2 * 1.5
  table.set_rule(Rule(rules::Sgd{.lr = 2}));
  table.set_rule(Rule(rules::Sgd{.lr = 1, .momentum = 0.5}));
  table.push(1, 0, {3}, {1, 1});
  EXPECT_EQ(table.pull({3}), (Floats{-5, -5}));  // the momentum has ended meanwhile
}

TEST(ShardRule, ThatIsEqualChangesNothing) {
  OwnShard table(sparse(kAdam));
  table.push(1, 0, {3}, {1, 1});
  OwnShard copy(table.shard.spec(), {}, table.shard.snapshot());
  table.set_rule(Rule::parse(kAdam));
  for (OwnShard* one : {&table, &copy}) one->push(2, 0, {3}, {1, 1});
  EXPECT_EQ(table.pull({3}), copy.pull({3}));
}

TEST(ShardRule, ThatComesAgainChangesNothing) {
  OwnShard table(sparse(kSum));
  const Rule assign = Rule::parse(R"({"rule": "assign"})"), sum = Rule::parse(kSum);
  EXPECT_EQ(table.shard.set_rule(1, 5, assign), PushOutcome::kApplied);
  EXPECT_EQ(table.shard.set_rule(2, 3, sum), PushOutcome::kApplied);
  OwnShard copy(table.shard.spec(), {}, table.shard.snapshot());
  for (OwnShard* one : {&table, &copy}) {
    EXPECT_EQ(one->shard.set_rule(1, 5, assign), PushOutcome::kRepeated);
    EXPECT_EQ(one->shard.spec().rule, sum);
  }
}

TEST(ShardRule, ThatDoesNotTakeTheTypeIsRefused) {
  OwnShard table(TableSpec::parse(
      R"({"name": "t", "dtype": "int32", "row_shape": [2], "rule": {"rule": "sum"}})"));
  const Error error = error_of([&] { table.set_rule(Rule::parse(kAdam)); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_STREQ(error.what(),
               "table t: rule adam: values are int32: they must be floating-point numbers");
}

TEST(ShardRule, PushesThatWaitLoseAWeightThatTheRuleDoesNotTake) {
  OwnShard table(sparse(R"({"rule": "weighted_average"})", R"(, "staleness": 0)"));
  table.shard.join(1);
  table.push(1, 0, {3}, {4, 4}, 7);
  table.set_rule(Rule::parse(kSum));
  expect_copy_is_equal(table);
  table.shard.tick(1, 0);
  EXPECT_EQ(table.pull({3}), (Floats{4, 4}));
}

// ---- custom rules

class CustomRules : public ::testing::Test {
 protected:
  void SetUp() override { Counting::install(); }
};

TEST_F(CustomRules, HaveStateThatTravels) {
  OwnShard table(sparse(Counting::json()));
  table.push(1, 0, {3, 4, 3}, {1, 1, 1, 1, 1, 1});  // row 3 gets 2 at the first call
  EXPECT_EQ(table.pull({3, 4}), (Floats{2, 2, 2, 2}));
  expect_copy_is_equal(table);
  OwnShard copy(table.shard.spec(), {}, table.shard.snapshot());
  copy.number = table.number;
  for (OwnShard* one : {&table, &copy}) one->push(1, 0, {9}, {1, 2});
  EXPECT_EQ(copy.pull({9}), (Floats{3, 6}));
  EXPECT_EQ(copy.shard.digest(), table.shard.digest());
  copy.set_rule(Rule::parse(Counting::json()));  // equal, though it was called since
  copy.push(1, 0, {10}, {1, 1});
  EXPECT_EQ(copy.pull({10}), (Floats{4, 4}));
}

TEST_F(CustomRules, APushOfWhichOneRowFailsChangesNoRow) {
  OwnShard table(sparse(Counting::json(), R"(, "initial": {"kind": "constant", "value": 5})"));
  const Error error = error_of([&] { table.push(1, 0, {3, 4}, {1, 1, -1, 1}); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_STREQ(error.what(), "table t: row 4: the push is -1");
  EXPECT_EQ(table.shard.row_count(), 0);
  EXPECT_EQ(table.pull({3, 4}), (Floats{5, 5, 5, 5}));
  EXPECT_EQ(table.shard.counters().failed_rows, 1);
  table.push(1, 0, {3}, {1, 1});
  EXPECT_EQ(table.pull({3}), (Floats{8, 8}));  // it was called twice before
}

TEST_F(CustomRules, AtTheEndOfAClockOnlyTheRowThatFailsStays) {
  OwnShard table(sparse(Counting::json(), R"(, "staleness": 0)"));
  for (const int64_t worker : {1, 2}) table.shard.join(worker);
  table.push(1, 0, {3, 4}, {1, 1, -3, 1});
  table.push(2, 0, {4, 5}, {1, 1, 1, 1});
  for (const int64_t worker : {1, 2}) table.shard.tick(worker, 0);
  EXPECT_EQ(table.shard.current_clock(), 1);
  EXPECT_EQ(table.pull({3, 4, 5}), (Floats{1, 1, 0, 0, 3, 3}));
  EXPECT_EQ(table.shard.counters().failed_rows, 1);
  expect_copy_is_equal(table);
}

TEST_F(CustomRules, GetADenseTensorAsAWhole) {
  const TableSpec spec = TableSpec::parse(
      R"({"name": "w", "dtype": "float32", "shape": [100000], "rule": )" + Counting::json() + "}");
  EXPECT_EQ(spec.row_count(), 1);
  EXPECT_EQ(TableSpec::parse(spec.json()), spec);
}

TEST_F(CustomRules, ComeAndGo) {
  OwnShard table(sparse(kAdam));
  table.push(1, 0, {3}, {1, 1});
  table.set_rule(Rule::parse(Counting::json(10)));
  const Floats before = table.pull({3});
  table.push(1, 0, {3}, {1, 1});
  EXPECT_EQ(table.pull({3}), (Floats{before[0] + 11, before[1] + 11}));
  table.set_rule(Rule::parse(Counting::json(1)));
  table.push(1, 0, {4}, {1, 1});
  EXPECT_EQ(table.pull({4}), (Floats{2, 2}));
  table.set_rule(Rule::parse(kSum));
  table.push(1, 0, {4}, {1, 1});
  EXPECT_EQ(table.pull({4}), (Floats{3, 3}));
  expect_copy_is_equal(table);
}

TEST_F(CustomRules, ThatCannotBeMadeAreRefused) {
  OwnShard table(sparse(kSum));
  const uint64_t digest = table.shard.digest();
  for (const auto& [maker, data, wanted] : std::vector<std::array<std::string, 3>>{
           {"nobody", "", "maker is \"nobody\""}, {Counting::kMaker, "bad", "bad is no number"}}) {
    const Rule rule(rules::Custom{.maker = maker, .data = data});
    for (const Error& error : {error_of([&] { table.set_rule(rule); }),
                               error_of([&] { OwnShard(sparse(rule.json())); })}) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(table.shard.digest(), digest);
}

}  // namespace
}  // namespace ringcoll
