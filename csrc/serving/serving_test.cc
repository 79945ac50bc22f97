// Clients and servers of tables: rows, order, clocks, and servers that change.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "serving/serving_testing.h"

namespace ringcoll::serving {
namespace {

constexpr int64_t kShards = 4;

std::vector<float> counted(size_t count, float first = 0) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// One server that leads all shards, and a client of it, on one host or on two.
class Serving : public testing::TestWithParam<const char*> {
 protected:
  void host(const TableSpec& spec, std::vector<int64_t> workers = {}) {
    for (uint32_t shard = 0; shard < kShards; shard++) {
      node.server.host(kUid, spec, shard, kShards, workers);
      node.server.lead(kUid, shard, 1, {});
    }
    join(worker, spec);
  }
  void join(ClientNode& client, const TableSpec& spec) {
    client.connect(1, node.server);
    client.client.open(kUid, spec, kShards);
    client.client.route(kUid, std::vector<int64_t>(kShards, 1));
  }

  ServerNode node{"one"};
  ClientNode worker{GetParam(), 7};
};

TEST_P(Serving, PushedRowsArePulledAndOthersAreWhatTheyBeganWith) {
  host(sparse(R"("initial": {"kind": "constant", "value": 5}, )"));
  worker.push({3, -8, 1'000'000}, counted(12, 1));
  EXPECT_EQ(worker.pull({-8, 4, 3}, 12),
            (std::vector<float>{10, 11, 12, 13, 5, 5, 5, 5, 6, 7, 8, 9}));
}

TEST_P(Serving, RowsOfOnePushThatAreTheSameAreAddedUp) {
  host(sparse());
  worker.push({3, 5, 3}, counted(12));
  EXPECT_EQ(worker.pull({3, 5, 3}, 12),
            (std::vector<float>{8, 10, 12, 14, 4, 5, 6, 7, 8, 10, 12, 14}));
}

TEST_P(Serving, RowsThatAreTheSameTravelOnce) {
  host(sparse());
  std::vector<int64_t> ids;
  for (int i = 0; i < 5'000; i++) ids.push_back(i * i % 701 - 50);
  const std::set<int64_t> distinct(ids.begin(), ids.end());
  worker.push(ids, std::vector<float>(4 * ids.size(), 1));
  const auto found = worker.pull(ids, 4 * ids.size());
  for (size_t i = 0; i < ids.size(); i++)
    ASSERT_EQ(found[4 * i + 3], static_cast<float>(std::ranges::count(ids, ids[i]))) << ids[i];
  size_t pushed = 0, pulled = 0;
  const auto stats = nlohmann::json::parse(node.server.stats());
  for (const auto& shard : stats["shards"]) {
    pushed += shard["pushed_bytes"].get<size_t>();
    pulled += shard["pulled_bytes"].get<size_t>();
  }
  EXPECT_EQ(pushed, 16 * distinct.size());
  EXPECT_EQ(pulled, 16 * distinct.size());
}

TEST_P(Serving, ManyRowsTravelOutsideOfSlots) {
  host(sparse());
  constexpr size_t kRows = 20'000;
  std::vector<int64_t> ids(kRows);
  std::iota(ids.begin(), ids.end(), -5'000);
  const auto values = counted(4 * kRows);
  worker.push(ids, values);
  worker.push(ids, values);
  const auto found = worker.pull(ids, 4 * kRows);
  for (size_t i = 0; i < found.size(); i++) ASSERT_EQ(found[i], 2 * values[i]) << i;
}

TEST_P(Serving, DenseTensorsOfAnySize) {
  // Shards of the last one go one by one, and a line has no room for all of them at once.
  for (const int64_t count : {1, 3, 100, 40'000, 300'001, 5'500'000}) {
    SCOPED_TRACE(count);
    const TableSpec spec = dense(count);
    const std::string uid = "dense " + std::to_string(count);
    const int64_t shards = std::min<int64_t>(spec.row_count(), count > 1'000'000 ? 20 : 3);
    for (uint32_t shard = 0; shard < shards; shard++) {
      node.server.host(uid, spec, shard, shards, {});
      node.server.lead(uid, shard, 1, {});
    }
    worker.connect(1, node.server);
    worker.client.open(uid, spec, shards);
    worker.client.route(uid, std::vector<int64_t>(static_cast<size_t>(shards), 1));
    const auto values = counted(static_cast<size_t>(count), 1);
    std::vector<float> out(values.size());
    for (int round = 1; round <= 2; round++) {
      auto call = worker.client.start(uid,
                                      {.pushes = true,
                                       .values = std::as_bytes(std::span(values)),
                                       .pulls = true,
                                       .out = std::as_writable_bytes(std::span(out))},
                                      nullptr);
      worker.wait(*call);
      for (size_t i = 0; i < out.size(); i++)
        ASSERT_EQ(out[i], static_cast<float>(round) * values[i]) << i;
    }
  }
}

TEST_P(Serving, CallsOfOneClientKeepTheirOrderWithoutWaiting) {
  host(TableSpec::parse(
      R"({"name": "t", "dtype": "float32", "row_shape": [4], "rule": {"rule": "assign"}})"));
  std::vector<std::vector<float>> values, found;
  std::vector<std::shared_ptr<Call>> calls;
  const std::vector<int64_t> ids{1, 2, 3, 4, 5, 6, 7, 8};
  for (int i = 0; i < 100; i++) {
    values.push_back(std::vector<float>(32, static_cast<float>(i)));
    found.push_back(std::vector<float>(32));
  }
  for (size_t i = 0; i < values.size(); i++) {
    calls.push_back(worker.start_push(ids, values[i]));
    calls.push_back(worker.client.start(
        kUid, {.ids = ids, .pulls = true, .out = std::as_writable_bytes(std::span(found[i]))},
        nullptr));
  }
  for (const auto& call : calls) worker.wait(*call);
  for (size_t i = 0; i < values.size(); i++) EXPECT_EQ(found[i], values[i]) << i;
}

TEST_P(Serving, WithStalenessZeroAPullSeesAllPushesOfTheClockBefore) {
  const TableSpec spec = sparse(R"("staleness": 0, )");
  host(spec, {7, 8});
  ClientNode other(GetParam(), 8);
  join(other, spec);
  const std::vector<int64_t> ids{1, 2, 3, 4, 5, 6};
  constexpr int kClocks = 50;
  const auto train = [&](ClientNode& node) {
    for (int64_t clock = 0; clock < kClocks; clock++) {
      const auto found = node.pull(ids, 24, clock);
      for (const float each : found) ASSERT_EQ(each, static_cast<float>(3 * clock));
      node.push(ids, std::vector<float>(24, node.id == 7 ? 1 : 2), clock);
      node.tick(clock);
    }
  };
  std::thread thread([&] { train(other); });
  train(worker);
  thread.join();
}

TEST_P(Serving, APullThatWaitsForAClockDoesNotKeepCallsOnOtherTables) {
  const TableSpec spec = sparse(R"("staleness": 0, )");
  host(spec, {7, 8});
  node.server.host("other", sparse(), 0, 1, {});
  node.server.lead("other", 0, 1, {});
  worker.client.open("other", sparse(), 1);
  worker.client.route("other", std::vector<int64_t>{1});
  worker.tick(0);
  std::vector<float> out(4), value(4, 1);
  const std::vector<int64_t> ids{1};
  auto waits = worker.client.start(
      kUid, {.ids = ids, .pulls = true, .out = std::as_writable_bytes(std::span(out)), .clock = 1},
      nullptr);
  for (int i = 0; i < 100; i++) {
    auto call = worker.client.start(
        "other", {.ids = ids, .pushes = true, .values = std::as_bytes(std::span(value))}, nullptr);
    worker.wait(*call);
  }
  EXPECT_FALSE(worker.client.has_ended(*waits));
  node.server.drop(8);  // it was the one that was waited for
  worker.wait(*waits);
}

TEST_P(Serving, ErrorsNameTheTableAndChangeNothing) {
  host(sparse());
  const auto code_of = [&](const Asked& asked) {
    try {
      worker.wait(*worker.client.start(kUid, asked, nullptr));
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("table t"), std::string::npos) << error.what();
      return static_cast<int>(error.code());
    }
    return 0;
  };
  const std::vector<float> three(3), four(4);
  const std::vector<int64_t> one{1};
  EXPECT_EQ(code_of({.ids = one, .pushes = true, .values = std::as_bytes(std::span(three))}),
            RC_INVALID_ARGUMENT);
  EXPECT_EQ(code_of({.ids = one,
                     .pushes = true,
                     .dtype = RC_FLOAT64,
                     .values = std::as_bytes(std::span(four))}),
            RC_INVALID_ARGUMENT);
  EXPECT_EQ(code_of({.kind = Kind::kTick, .clock = 0}), RC_INVALID_ARGUMENT);  // no worker
  const std::string rule = R"({"rule": "custom", "maker": "nobody"})";
  EXPECT_EQ(code_of({.kind = Kind::kRule, .values = std::as_bytes(std::span(rule))}),
            RC_INVALID_ARGUMENT);
  EXPECT_EQ(worker.pull(one, 4), std::vector<float>(4, 0));
}

TEST_P(Serving, AClientThatBreaksItsLineDisturbsNobody) {
  host(sparse());
  {
    ClientNode other(GetParam(), 8);
    join(other, sparse());
    for (int i = 0; i < 10; i++) other.start_push({1}, std::vector<float>(4, 1));
  }
  worker.push({2}, std::vector<float>(4, 1));
  EXPECT_EQ(worker.pull({2}, 4), std::vector<float>(4, 1));
}

INSTANTIATE_TEST_SUITE_P(Hosts, Serving, testing::Values("one", "two"));

}  // namespace
}  // namespace ringcoll::serving
