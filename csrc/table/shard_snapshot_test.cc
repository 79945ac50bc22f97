// Snapshots of a shard, shards of a snapshot, and digests.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/allocations_testing.h"
#include "base/error.h"
#include "base/error_testing.h"
#include "table/shard_testing.h"

namespace ringcoll {
namespace {

using testing::encoded;
using testing::error_of;
using testing::Floats;
using testing::Ids;
using testing::OwnShard;
using testing::sparse;

constexpr const char* kAdam = R"({"rule": "adam", "lr": 0.1})";
constexpr const char* kSum = R"({"rule": "sum"})";

/// Rows, two workers at clock 1, and a push of one of them that waits.
std::unique_ptr<OwnShard> driven(const TableSpec& spec) {
  auto table = std::make_unique<OwnShard>(spec);
  table->shard.join(1);
  table->shard.join(2);
  table->push(1, 0, {4, -7, 2}, {1, 2, 3, 4, 5, 6});
  table->push(2, 0, {2, 9}, {7, 8, 9, 10});
  table->shard.tick(1, 0);
  table->shard.tick(2, 0);
  table->push(2, 1, {4, 9}, {1, 1, 2, 2});
  return table;
}

TableSpec dense() {
  return TableSpec::parse(
      R"({"name": "w", "dtype": "float32", "shape": [7], "stretch": 2,
          "rule": {"rule": "sgd", "momentum": 0.5, "lr": 1}})");
}

TEST(Snapshot, MakesAnEqualShard) {
  for (const char* fields : {"", R"(, "staleness": 0)", R"(, "max_rows": 3, "evict": "use")"}) {
    const TableSpec spec = sparse(kAdam, fields);
    const auto first = driven(spec);
    OwnShard second(spec, {}, first->shard.snapshot());
    EXPECT_EQ(second.shard.digest(), first->shard.digest()) << fields;
    EXPECT_EQ(second.shard.counters(), first->shard.counters()) << fields;
    EXPECT_EQ(encoded(second.shard.snapshot()), encoded(first->shard.snapshot())) << fields;
    second.number = first->number;
    for (OwnShard* table : {first.get(), &second}) {
      table->push(1, 1, {2, 100}, {1, 2, 3, 4});
      table->shard.tick(1, 1);
      table->shard.tick(2, 1);
    }
    EXPECT_EQ(second.shard.digest(), first->shard.digest()) << fields;
    EXPECT_EQ(second.pull({2, 4, 9, 100}), first->pull({2, 4, 9, 100})) << fields;
  }
}

TEST(Snapshot, OfADenseShardHasItsRange) {
  OwnShard first(dense(), {2, 2});
  first.push(1, 0, {2, 3}, {5, 6, 7});
  OwnShard second(dense(), {2, 2}, first.shard.snapshot());
  second.number = first.number;
  for (OwnShard* table : {&first, &second}) table->push(1, 0, {3}, {1});
  EXPECT_EQ(second.pull({2, 3}), (Floats{-5, -6, -11.5}));  // momentum came along
  EXPECT_EQ(second.shard.digest(), first.shard.digest());
  const auto refusal = [&](Range range) {
    return std::string(error_of([&] { OwnShard(dense(), range, first.shard.snapshot()); }).what());
  };
  EXPECT_EQ(refusal({1, 2}),
            "table w: row 3 is not here: the table has rows 0 to 3, and this shard 2 of them");
  EXPECT_EQ(refusal({1, 3}), "table w: a snapshot has 2 rows: a shard has all 3");
  EXPECT_EQ(refusal({2, 1}), "table w: a snapshot has 2 rows: a shard has all 1");
}

TEST(Snapshot, KnowsWhatHasBeenPushed) {
  const TableSpec spec = sparse(kSum);
  OwnShard first(spec);
  first.push(1, 0, {3}, {1, 2});
  OwnShard second(spec, {}, first.shard.snapshot());
  EXPECT_EQ(second.push(1, 0, {3}, {1, 2}), PushOutcome::kRepeated);
  EXPECT_EQ(second.push(1, 0, {3}, {1, 2}), PushOutcome::kApplied);  // the next one
  EXPECT_EQ(second.pull({3}), (Floats{2, 4}));
}

TEST(Snapshot, HasTheRuleAsItIsNow) {
  const TableSpec spec = sparse(R"({"rule": "sgd", "lr": 1})");
  OwnShard first(spec);
  first.push(1, 0, {3}, {1, 2});
  first.set_rule(Rule(rules::Sgd{.lr = 0.5}));
  OwnShard second(spec, {}, first.shard.snapshot());
  EXPECT_EQ(second.shard.spec().rule, first.shard.spec().rule);
}

TEST(Snapshot, ThatNoShardCanBeIsRefused) {
  const TableSpec spec = sparse(kAdam, R"(, "staleness": 0, "max_rows": 4)");
  const auto table = driven(spec);
  constexpr int64_t kHuge = INT64_MAX;
  const std::vector<std::function<void(Snapshot&)>> damages = {
      [](Snapshot& bad) { bad.rows[1].id = bad.rows[0].id; },
      [](Snapshot& bad) { bad.rows.push_back(bad.rows[3]), bad.rows[4].id = 99; },
      [](Snapshot& bad) { bad.rows[0].values = bad.rows[0].values.first(4); },
      [](Snapshot& bad) { bad.rows[0].state[1] = bad.rows[0].state[1].first(4); },
      [](Snapshot& bad) { bad.rows[0].counts.uses = kHuge; },
      [](Snapshot& bad) { bad.rows[0].counts.tally.pushes = -1; },
      [](Snapshot& bad) { bad.rows[0].counts.tally.weight = -1; },
      [](Snapshot& bad) { bad.rows[0].counts.last_use = bad.uses + 1; },
      [](Snapshot& bad) { bad.rule = Rule(rules::Custom{.maker = "nobody", .data = ""}); },
      [](Snapshot& bad) { bad.waiting[0].values = bad.waiting[0].values.first(4); },
      [](Snapshot& bad) { bad.waiting[0].dtype = RC_FLOAT64; },
      [](Snapshot& bad) { bad.waiting[0].weight = -1; },
      [](Snapshot& bad) { bad.waiting[0].clock = 0; },
      [](Snapshot& bad) { bad.waiting[0].clock = kHuge; },
      [](Snapshot& bad) { bad.waiting.push_back(bad.waiting[0]), bad.waiting[1].worker = 1; },
      [](Snapshot& bad) { bad.clock = -1; },
      [](Snapshot& bad) { bad.grace_ended = bad.clock + 1; },
      [](Snapshot& bad) { bad.uses = kHuge; },
      [](Snapshot& bad) { bad.counters.late_pushes = -1; },
      [](Snapshot& bad) { bad.counters.failed_rows = -1; },
      [](Snapshot& bad) { bad.workers[1] = kHuge; },
      [](Snapshot& bad) { bad.workers[1] = -1; }};
  for (size_t i = 0; i < damages.size(); i++) {
    Snapshot bad = table->shard.snapshot();
    damages[i](bad);
    EXPECT_EQ(error_of([&] { OwnShard(spec, {}, bad); }).code(), Code::kInvalidArgument) << i;
  }
  const TableSpec free = sparse(kAdam, R"(, "staleness": 1)");
  EXPECT_NE(std::string(error_of([&] { OwnShard(free, {}, table->shard.snapshot()); }).what())
                .find("a snapshot has 1 pushes that wait"),
            std::string::npos);
}

TEST(Snapshot, OfPushesOfTwoTypesIsRefused) {
  const TableSpec spec = TableSpec::parse(
      R"({"name": "h", "dtype": "float16", "row_shape": [2], "rule": {"rule": "sum"},
          "staleness": 0})");
  OwnShard table(spec);
  table.shard.join(0);
  table.push(0, 0, {3}, {1, 2});
  Snapshot bad = table.shard.snapshot();
  bad.waiting.push_back(bad.waiting[0]);
  EXPECT_NO_THROW(OwnShard(spec, {}, bad));
  bad.waiting[1].dtype = RC_FLOAT16;
  bad.waiting[1].values = bad.waiting[1].values.first(4);
  EXPECT_STREQ(error_of([&] { OwnShard(spec, {}, bad); }).what(),
               "table h: a snapshot has pushes of several types for clock 0");
}

TEST(Snapshot, WithoutMemoryThereIsNoShard) {
  const TableSpec spec = sparse(kAdam, R"(, "staleness": 0)");
  const auto table = driven(spec);
  const Snapshot snapshot = table->shard.snapshot();
  int failures = 0;
  for (bool done = false; !done; failures++) {
    testing::fail_allocation_after(failures);
    try {
      const OwnShard other(spec, {}, snapshot);
      done = true;
      testing::fail_allocation_after(-1);
      EXPECT_EQ(other.shard.digest(), table->shard.digest());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kRefused);
    }
    testing::fail_allocation_after(-1);
  }
  EXPECT_GT(failures, 10);
}

TEST(Digest, TellsShardsApart) {
  const TableSpec spec = sparse(kSum);
  const auto digest_after = [&](const std::function<void(OwnShard&)>& change) {
    OwnShard table(spec);
    table.push(1, 0, {1, 2}, {1, 2, 3, 4});
    change(table);
    return table.shard.digest();
  };
  const uint64_t digest = digest_after([](OwnShard&) {});
  EXPECT_EQ(digest_after([](OwnShard&) {}), digest);
  EXPECT_NE(digest_after([](OwnShard& table) { table.push(1, 0, {1}, {1, 0}); }), digest);
  EXPECT_NE(digest_after([](OwnShard& table) { table.push(1, 0, {}, {}); }), digest);
  EXPECT_NE(digest_after([](OwnShard& table) { table.shard.join(1); }), digest);
}

}  // namespace
}  // namespace ringcoll
