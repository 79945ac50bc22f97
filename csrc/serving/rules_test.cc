// Rules that change, custom rules, and values that are assigned, on a server with a backup.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error_testing.h"
#include "rules/custom_rule_testing.h"
#include "serving/serving_testing.h"

namespace ringcoll::serving {
namespace {

using ringcoll::testing::Counting;
using ringcoll::testing::error_of;

constexpr int64_t kShards = 4;
constexpr const char* kAdam = R"({"rule": "adam", "lr": 0.1})";

TableSpec rows_by(const std::string& rule, const std::string& more = "") {
  return TableSpec::parse(R"({"name": "t", "dtype": "float32", "row_shape": [4], )" + more +
                          R"("rule": )" + rule + "}");
}

/// Server 1 leads all shards, server 2 is the backup, and two clients use them.
class Rules : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Counting::install();
    connect(primary.server, -1, 2, backup.server);
  }
  void host(const TableSpec& spec, const std::vector<int64_t>& workers = {}) {
    for (uint32_t shard = 0; shard < kShards; shard++) {
      backup.server.host(kUid, spec, shard, kShards, workers);
      primary.server.host(kUid, spec, shard, kShards, workers);
      primary.server.lead(kUid, shard, 1, std::vector<int64_t>{2});
      backup.server.follow(kUid, shard, 1);
    }
    for (ClientNode* client : {&one, &two}) {
      client->connect(1, primary.server);
      client->client.open(kUid, spec, kShards);
      client->client.route(kUid, std::vector<int64_t>(kShards, 1));
    }
  }
  void set_rule(ClientNode& client, const std::string& rule) {
    client.wait(*client.client.start(
        kUid, {.kind = Kind::kRule, .values = std::as_bytes(std::span(rule))}, nullptr));
  }
  void assign(ClientNode& client, const std::vector<int64_t>& ids,
              const std::vector<float>& values) {
    client.wait(*client.client.start(kUid,
                                     {.kind = Kind::kAssign,
                                      .ids = ids,
                                      .pushes = true,
                                      .values = std::as_bytes(std::span(values))},
                                     nullptr));
  }
  void expect_backup_is_equal() {
    for (uint32_t shard = 0; shard < kShards; shard++)
      EXPECT_EQ(primary.server.digest(kUid, shard), backup.server.digest(kUid, shard)) << shard;
  }
  /// How often the primary has given a backup up.
  int64_t lost_backups() {
    return std::ranges::count(primary.server.events(), ServerEvent::Kind::kFailed,
                              &ServerEvent::kind);
  }

  ServerNode primary{"one"}, backup{GetParam()};
  ClientNode one{"one", 7}, two{GetParam(), 8};
};

TEST_P(Rules, AssignedValuesAreOnTheBackup) {
  host(rows_by(kAdam, R"("staleness": 0, )"), {7});
  std::vector<int64_t> ids(3'000);  // more than a slot has
  std::iota(ids.begin(), ids.end(), -7);
  assign(two, ids, std::vector<float>(4 * ids.size(), 3));
  EXPECT_EQ(one.pull(ids, 4 * ids.size()), std::vector<float>(4 * ids.size(), 3));
  assign(one, {1, 2, 1}, {1, 1, 1, 1, 2, 2, 2, 2, 5, 5, 5, 5});
  EXPECT_EQ(two.pull({1, 2}, 8), (std::vector<float>{5, 5, 5, 5, 2, 2, 2, 2}));
  expect_backup_is_equal();
}

TEST_P(Rules, AssignsKeepTheirOrderAmongPushes) {
  host(sparse());
  const std::vector<int64_t> ids{1, 2, 3, 4, 5, 6};
  const std::vector<float> ones(24, 1), tens(24, 10);
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 50; i++) {
    calls.push_back(one.client.start(kUid,
                                     {.kind = Kind::kAssign,
                                      .ids = ids,
                                      .pushes = true,
                                      .values = std::as_bytes(std::span(tens))},
                                     nullptr));
    calls.push_back(one.start_push(ids, ones));
  }
  for (const auto& call : calls) one.wait(*call);
  EXPECT_EQ(one.pull(ids, 24), std::vector<float>(24, 11));
  expect_backup_is_equal();
}

TEST_P(Rules, ADenseTensorIsAssigned) {
  const TableSpec spec = dense(40'000);
  const std::string uid = "dense";
  primary.server.host(uid, spec, 0, 1, {});
  primary.server.lead(uid, 0, 1, {});
  one.connect(1, primary.server);
  one.client.open(uid, spec, 1);
  one.client.route(uid, std::vector<int64_t>{1});
  std::vector<float> values(40'000), out(40'000);
  std::iota(values.begin(), values.end(), 0.0F);
  for (int i = 0; i < 2; i++)
    one.wait(*one.client.start(
        uid, {.kind = Kind::kAssign, .pushes = true, .values = std::as_bytes(std::span(values))},
        nullptr));
  one.wait(*one.client.start(uid, {.pulls = true, .out = std::as_writable_bytes(std::span(out))},
                             nullptr));
  EXPECT_EQ(out, values);
}

TEST_P(Rules, AnotherKindOfRuleIsOnTheBackup) {
  host(sparse());
  one.push({1, 2, 3, 4, 5}, std::vector<float>(20, 1));
  set_rule(one, kAdam);
  EXPECT_EQ(two.pull({1}, 4), std::vector<float>(4, 1));
  two.push({1, 2, 3, 9}, std::vector<float>(16, 1));
  for (const float value : two.pull({1}, 4)) EXPECT_NEAR(value, 0.9, 1e-5);
  expect_backup_is_equal();
}

TEST_P(Rules, AClientNeedNotKnowThatTheRuleHasChanged) {
  host(sparse());
  two.push({1}, std::vector<float>(4, 1));
  set_rule(one, R"({"rule": "assign"})");
  two.push({1, 1}, {1, 1, 1, 1, 2, 2, 2, 2});
  EXPECT_EQ(two.pull({1}, 4), std::vector<float>(4, 2));
  set_rule(one, R"({"rule": "weighted_average"})");
  const std::vector<int64_t> ids{1};
  const std::vector<float> fours(4, 4), ones(4, 1);
  const auto push = [&](const std::vector<float>& values, double weight) {
    two.wait(*two.client.start(
        kUid,
        {.ids = ids, .pushes = true, .values = std::as_bytes(std::span(values)), .weight = weight},
        nullptr));
  };
  push(fours, 1);
  push(ones, 2);
  EXPECT_EQ(two.pull({1}, 4), std::vector<float>(4, 2));
  set_rule(one, R"({"rule": "sum"})");
  const Error error = error_of([&] { push(fours, 2); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("takes no weights"), std::string::npos);
  EXPECT_EQ(two.pull({1}, 4), std::vector<float>(4, 2));
  expect_backup_is_equal();
}

TEST_P(Rules, AClientMergesRowsAsTheRuleDoesThatThereIs) {
  host(rows_by(R"({"rule": "sum"})"));
  const std::vector<int64_t> ids{1, 2, 1, 3, 1};
  const std::vector<float> values{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5};
  const auto expect = [&](float first) {
    EXPECT_EQ(two.pull({1, 3}, 8), (std::vector<float>{first, first, first, first, 4, 4, 4, 4}));
  };
  one.push(ids, values);
  expect(9);
  set_rule(two, R"({"rule": "assign"})");
  for (int time = 0; time < 3; time++) {
    one.push(ids, values);
    expect(5);
  }
  set_rule(two, R"({"rule": "assign", "combine": "sum"})");
  one.push(ids, values);
  expect(9);
  expect_backup_is_equal();
}

TEST_P(Rules, RowsThatCountOneByOneAreNotMerged) {
  host(rows_by(R"({"rule": "weighted_average"})"));
  const std::vector<int64_t> ids{1, 2, 1, 1};
  const std::vector<float> values{2, 2, 2, 2, 8, 8, 8, 8, 4, 4, 4, 4, 6, 6, 6, 6};
  one.push(ids, values);
  EXPECT_EQ(one.pull({1, 2}, 8), (std::vector<float>{4, 4, 4, 4, 8, 8, 8, 8}));
  set_rule(two, R"({"rule": "sum"})");
  one.push(ids, values);
  EXPECT_EQ(one.pull({1, 2}, 8), (std::vector<float>{16, 16, 16, 16, 16, 16, 16, 16}));
  set_rule(two, R"({"rule": "weighted_average"})");
  one.push({3, 3}, {2, 2, 2, 2, 4, 4, 4, 4});
  EXPECT_EQ(one.pull({3}, 4), std::vector<float>(4, 3));
  expect_backup_is_equal();
}

TEST_P(Rules, CustomRulesRunOnTheBackup) {
  host(rows_by(Counting::json()));
  for (int i = 0; i < 20; i++) one.push({1, 2, 3, i}, std::vector<float>(16, 0.5F));
  expect_backup_is_equal();
  primary.server.lead(kUid, 0, 2, {});  // gives the backup up, and sends it all again
  primary.server.lead(kUid, 0, 3, std::vector<int64_t>{2});
  for (int i = 0; i < 20; i++) two.push({1, 2, 3, i}, std::vector<float>(16, 0.5F));
  expect_backup_is_equal();
}

TEST_P(Rules, ACustomRuleThatThrowsEndsTheCallAndBackupsStayEqual) {
  host(rows_by(Counting::json()));
  std::vector<int64_t> ids(40);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> values(160, 1);
  one.push(ids, values);
  const auto before = one.pull(ids, 160);
  for (size_t i = 0; i < ids.size(); i++) values[4 * i] = -1;  // in all shards
  const Error error = error_of([&] { one.push(ids, values); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("the push is -1"), std::string::npos) << error.what();
  EXPECT_EQ(one.pull(ids, 160), before);
  two.push(ids, std::vector<float>(160, 1));
  expect_backup_is_equal();
  EXPECT_EQ(lost_backups(), 0);
}

TEST_P(Rules, ABackupWhoseRuleDoesSomethingElseIsNoneAnyMore) {
  host(rows_by(Counting::json()));
  one.push({1}, std::vector<float>(4, 1));
  Counting::throws_left = 1;  // where the shard is led, and not on the backup
  EXPECT_EQ(error_of([&] { one.push({1}, std::vector<float>(4, -1)); }).code(),
            Code::kInvalidArgument);
  Counting::throws_left = -1;
  EXPECT_EQ(lost_backups(), 1);
}

TEST_P(Rules, AShardThatDoesWhatAnotherOneRefusesIsForwarded) {
  host(rows_by(Counting::json()));
  std::vector<int64_t> ids(40);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> values(160, 1);
  values[0] = -1;  // in one shard
  EXPECT_EQ(error_of([&] { one.push(ids, values); }).code(), Code::kInvalidArgument);
  const auto found = one.pull(ids, 160);
  EXPECT_EQ(found[0], 0);
  EXPECT_GT(std::accumulate(found.begin(), found.end(), 0.0F), 0);
  expect_backup_is_equal();
}

TEST_P(Rules, AnErrorAtTheEndOfAClockIsCounted) {
  host(rows_by(Counting::json(), R"("staleness": 0, )"), {7});
  one.push({1, 2, 3}, {1, 1, 1, 1, -1, 0, 0, 0, 1, 1, 1, 1}, 0);
  EXPECT_EQ(one.tick(0), 1);
  EXPECT_EQ(one.pull({2}, 4), std::vector<float>(4, 0));
  EXPECT_NE(one.pull({1}, 4), std::vector<float>(4, 0));
  EXPECT_NE(primary.server.stats().find(R"("failed":1)"), std::string::npos);
  expect_backup_is_equal();
}

TEST_P(Rules, AShardWithARuleThatCannotBeMadeIsNotHosted) {
  const TableSpec spec = rows_by(R"({"rule": "custom", "maker": "nobody", "data": ""})");
  const Error error = error_of([&] { primary.server.host(kUid, spec, 0, 1, {}); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("this process has none of that name"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Hosts, Rules, ::testing::Values("one", "two"));

}  // namespace
}  // namespace ringcoll::serving
