// Shards that have backups, are taken over, and move, while clients push.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "serving/serving_testing.h"
#include "table/sharding.h"

namespace ringcoll::serving {
namespace {

constexpr int64_t kShards = 4;
/// Servers 1 to n, each of which has lines to all others, and who leads what.
class Servers {
 public:
  Servers(const std::vector<std::string>& hosts, const TableSpec& spec,
          std::vector<int64_t> workers = {})
      : spec_(spec), workers_(std::move(workers)) {
    for (const std::string& host : hosts) nodes_.push_back(std::make_unique<ServerNode>(host));
    for (int64_t from = 1; from <= std::ssize(nodes_); from++)
      for (int64_t to = 1; to <= std::ssize(nodes_); to++)
        if (from != to)
          (*this)[from].complete(to, (*this)[to].accept(-from, (*this)[from].offer(to)));
  }
  Server& operator[](int64_t number) { return nodes_[static_cast<size_t>(number - 1)]->server; }

  void lead(uint32_t shard, int64_t server, const std::vector<int64_t>& backups) {
    for (const int64_t backup : backups)
      (*this)[backup].host(kUid, spec_, shard, kShards, workers_);
    (*this)[server].host(kUid, spec_, shard, kShards, workers_);
    (*this)[server].lead(kUid, shard, ++epoch_, backups);
    epochs_[shard] = epoch_;
    for (const int64_t backup : backups) (*this)[backup].follow(kUid, shard, epoch_);
  }
  void lead_all(int64_t server, const std::vector<int64_t>& backups) {
    for (uint32_t shard = 0; shard < kShards; shard++) lead(shard, server, backups);
  }
  /// The server is no more, and its lines break.
  void kill(int64_t number) {
    nodes_[static_cast<size_t>(number - 1)].reset();
    for (int64_t each = 1; each <= std::ssize(nodes_); each++)
      if (nodes_[static_cast<size_t>(each - 1)]) (*this)[each].part(number);
  }
  /// Waits until the server has said that backups have the shard, as it was led last.
  void wait_installed(int64_t server, uint32_t shard) {
    const Deadline deadline(seconds(20));
    while (!installed_.contains({shard, epochs_[shard]})) {
      ASSERT_FALSE(deadline.passed()) << "shard " << shard << " has no backup after 20 s";
      for (const ServerEvent& event : (*this)[server].events())
        if (event.kind == ServerEvent::Kind::kInstalled)
          installed_.insert({event.shard, event.epoch});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void join(ClientNode& client) {
    for (int64_t each = 1; each <= std::ssize(nodes_); each++) client.connect(each, (*this)[each]);
    client.client.open(kUid, spec_, kShards);
  }

 private:
  TableSpec spec_;
  std::vector<int64_t> workers_;
  std::vector<std::unique_ptr<ServerNode>> nodes_;
  int64_t epoch_ = 0;
  std::map<uint32_t, int64_t> epochs_;
  std::set<std::pair<uint32_t, int64_t>> installed_;  // shards, and their epochs
};

void route(ClientNode& client, int64_t server) {
  client.client.route(kUid, std::vector<int64_t>(kShards, server));
}

class Backups : public testing::TestWithParam<const char*> {
 protected:
  std::vector<std::string> hosts() const { return {"one", GetParam(), "one"}; }
};

TEST_P(Backups, WhatIsAcknowledgedIsOnTheBackupBitForBit) {
  const TableSpec spec = TableSpec::parse(
      R"({"name": "t", "dtype": "float32", "row_shape": [4], "rule": {"rule": "adam", "lr": 0.1},
          "initial": {"kind": "normal", "mean": 0, "std": 1, "seed": 3}})");
  Servers servers(hosts(), spec);
  servers.lead_all(1, {2});
  ClientNode worker("one", 7);
  servers.join(worker);
  route(worker, 1);
  std::vector<int64_t> ids(3'000);  // more than a slot has
  for (size_t i = 0; i < ids.size(); i++) ids[i] = static_cast<int64_t>(i * i);
  for (int i = 0; i < 5; i++) worker.push(ids, std::vector<float>(4 * ids.size(), 0.5F));
  for (int i = 0; i < 50; i++) worker.push({1, 2, 3, i}, std::vector<float>(16, 0.25F));
  for (uint32_t shard = 0; shard < kShards; shard++) {
    EXPECT_EQ(servers[1].digest(kUid, shard), servers[2].digest(kUid, shard));
  }
}

TEST_P(Backups, WhoMayHaveBeenReplacedAnswersNobody) {
  Servers servers(hosts(), sparse());
  for (uint32_t shard = 0; shard < kShards; shard++)
    servers.lead(shard, 1, shard == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{2});
  ClientNode worker("one", 7), other("one", 8);
  for (ClientNode* each : {&worker, &other}) {
    servers.join(*each);
    route(*each, 1);
  }
  std::vector<int64_t> ids(100);
  std::iota(ids.begin(), ids.end(), 0);
  worker.push(ids, std::vector<float>(400, 1));

  servers[1].serve_until(Clock::now());
  std::vector<float> values(400);
  const auto call = worker.client.start(
      kUid, {.ids = ids, .pulls = true, .out = std::as_writable_bytes(std::span(values))}, nullptr);
  EXPECT_FALSE(worker.client.wait(*call, 0.1));
  EXPECT_THROW(servers[1].save(kUid, 1), Error);
  std::vector<int64_t> alone;  // in shard 0, which has no backup
  for (const int64_t id : ids)
    if (ringcoll::shard_of(sparse(), id, kShards) == 0) alone.push_back(id);
  EXPECT_EQ(other.pull(alone, 4 * alone.size()), std::vector<float>(4 * alone.size(), 1));

  servers[1].serve_until(Clock::now() + seconds(100));
  route(worker, 1);
  EXPECT_TRUE(worker.client.wait(*call, 20));
  EXPECT_EQ(values, std::vector<float>(400, 1));
}

TEST_P(Backups, AShardThatTheBackupNeverHostsDoesNotKeepOthers) {
  Servers servers(hosts(), sparse());
  servers[1].host("dropped", sparse(), 0, 1, {});
  servers[1].lead("dropped", 0, 1, std::vector<int64_t>{2});
  servers.lead_all(1, {2});
  ClientNode worker("one", 7);
  servers.join(worker);
  route(worker, 1);
  worker.push({1, 2, 3, 4, 5, 6}, std::vector<float>(24, 1));
  for (uint32_t shard = 0; shard < kShards; shard++)
    EXPECT_EQ(servers[1].digest(kUid, shard), servers[2].digest(kUid, shard));
}

TEST_P(Backups, ABackupThatComesLaterGetsAllAndThenFollows) {
  Servers servers(hosts(), sparse());
  servers.lead_all(1, {});
  ClientNode worker("one", 7);
  servers.join(worker);
  route(worker, 1);
  worker.push({1, 2, 3, 4, 5, 6}, std::vector<float>(24, 1));
  servers.lead_all(1, {2});
  worker.push({5, 6, 7, 8}, std::vector<float>(16, 1));
  for (uint32_t shard = 0; shard < kShards; shard++)
    EXPECT_EQ(servers[1].digest(kUid, shard), servers[2].digest(kUid, shard));
}

TEST_P(Backups, NothingIsAcknowledgedWithoutTheBackup) {
  Servers servers(hosts(), sparse());
  servers.lead_all(1, {2});
  ClientNode worker("one", 7);
  servers.join(worker);
  route(worker, 1);
  worker.push({1}, std::vector<float>(4, 1));
  servers.kill(2);
  const std::vector<float> ones(4, 1);
  const auto call = worker.start_push({1}, ones);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(worker.client.has_ended(*call));
  servers.lead_all(1, {3});  // whoever decides has found another one
  worker.wait(*call);
  EXPECT_EQ(servers[1].digest(kUid, 0), servers[3].digest(kUid, 0));
}

TEST_P(Backups, AServerThatWasReplacedAcknowledgesNothing) {
  Servers servers(hosts(), sparse());
  servers.lead_all(1, {2, 3});
  ClientNode worker("one", 7);
  servers.join(worker);
  route(worker, 1);
  worker.push({1, 2, 3, 4}, std::vector<float>(16, 1));
  servers.lead_all(2, {3});  // server 1 does not hear of it
  const std::vector<float> ones(16, 1);
  const auto call = worker.start_push({1, 2, 3, 4}, ones);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(worker.client.has_ended(*call));
  EXPECT_EQ(worker.client.astray().tables, std::vector<std::string>{kUid});
  route(worker, 2);
  worker.wait(*call);
  EXPECT_EQ(worker.pull({1, 2, 3, 4}, 16), std::vector<float>(16, 2));
}

TEST_P(Backups, APullThatIsSentAgainHasNothingThatCameLater) {
  Servers servers(hosts(), sparse());
  servers.lead_all(1, {2, 3});
  ClientNode worker("one", 7);
  servers.join(worker);
  route(worker, 1);
  const std::vector<int64_t> ids{1, 2, 3, 4};
  worker.push(ids, std::vector<float>(16, 1));
  servers.kill(3);  // so server 1 answers no push any more, but server 2 gets it
  const std::vector<float> ones(16, 1);
  std::vector<float> values(16);
  const auto pull = worker.client.start(kUid,
                                        {.ids = ids,
                                         .pushes = true,
                                         .values = std::as_bytes(std::span(ones)),
                                         .pulls = true,
                                         .out = std::as_writable_bytes(std::span(values))},
                                        nullptr);
  const auto push = worker.start_push(ids, ones);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(worker.client.has_ended(*pull));
  servers.kill(1);
  servers.lead_all(2, {});
  worker.client.part(1);
  route(worker, 2);
  worker.wait(*pull);
  worker.wait(*push);
  EXPECT_EQ(values, std::vector<float>(16, 2));
  EXPECT_EQ(worker.pull(ids, 16), std::vector<float>(16, 3));
}

TEST_P(Backups, ARuleThatIsSentAgainDoesNotUndoALaterOne) {
  Servers servers(hosts(), sparse());
  servers.lead_all(1, {2, 3});
  ClientNode one("one", 7), two(GetParam(), 8);
  for (ClientNode* client : {&one, &two}) servers.join(*client);
  route(one, 1);
  servers.kill(3);  // so server 1 answers no change any more, but server 2 gets it
  const auto set_rule = [](ClientNode& client, const std::string& rule) {
    return client.client.start(
        kUid, {.kind = Kind::kRule, .values = std::as_bytes(std::span(rule))}, nullptr);
  };
  const std::string assign = R"({"rule": "assign"})", sum = R"({"rule": "sum"})";
  const auto earlier = set_rule(one, assign);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(one.client.has_ended(*earlier));
  servers.kill(1);
  servers.lead_all(2, {});
  route(two, 2);
  two.wait(*set_rule(two, sum));
  one.client.part(1);
  route(one, 2);
  one.wait(*earlier);
  const std::vector<int64_t> ids{1, 2, 3, 4};
  for (int i = 0; i < 2; i++) one.push(ids, std::vector<float>(16, 1));
  EXPECT_EQ(two.pull(ids, 16), std::vector<float>(16, 2));
}

/// Clients that push all the time, and know what was acknowledged.
class Pushing {
 public:
  explicit Pushing(Servers& servers) {
    for (int i = 0; i < 3; i++) {
      clients_.push_back(std::make_unique<ClientNode>(i == 0 ? "one" : "two", 7 + i));
      servers.join(*clients_.back());
    }
  }
  ~Pushing() { stop(); }

  void route(const std::vector<int64_t>& servers) {
    servers_ = servers;
    for (const auto& each : clients_) each->client.route(kUid, servers);
  }
  void part(int64_t server) {
    for (const auto& each : clients_) each->client.part(server);
  }
  void start() {
    running_ = clients_.size();
    for (size_t i = 0; i < clients_.size(); i++) threads_.emplace_back([this, i] { push(i); });
  }
  /// As whoever decides on shards does, tells clients that have lost their way where they are.
  void go_on() {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (const auto& each : clients_)
      if (!each->client.astray().tables.empty()) each->client.route(kUid, servers_);
  }
  /// Waits for all pushes, and compares rows with what was pushed.
  void check() {
    stop();
    std::vector<int64_t> ids(kRows);
    std::iota(ids.begin(), ids.end(), 0);
    const auto found = clients_[0]->pull(ids, 4 * kRows);
    for (size_t row = 0; row < kRows; row++)
      EXPECT_EQ(found[4 * row], static_cast<float>(pushed_[row])) << row;
  }

 private:
  static constexpr size_t kRows = 50;

  void push(size_t number) {
    ClientNode& client = *clients_[number];
    std::mt19937 random(static_cast<unsigned>(number));
    const std::vector<float> ones(8, 1);
    while (!stop_) {
      std::vector<std::shared_ptr<Call>> calls;
      for (int i = 0; i < 8; i++) {
        const size_t first = random() % kRows, second = random() % kRows;
        calls.push_back(
            client.start_push({static_cast<int64_t>(first), static_cast<int64_t>(second)}, ones));
        pushed_[first]++;
        pushed_[second]++;
      }
      for (const auto& call : calls) client.wait(*call);
    }
    running_--;
  }
  void stop() {
    stop_ = true;
    while (running_ > 0) go_on();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::vector<std::unique_ptr<ClientNode>> clients_;
  std::vector<std::thread> threads_;
  std::array<std::atomic<int>, kRows> pushed_{};
  std::atomic<bool> stop_ = false;
  std::atomic<size_t> running_ = 0;
  std::vector<int64_t> servers_;
};

TEST_P(Backups, ShardsMoveWhileClientsPush) {
  Servers servers(hosts(), sparse());
  Pushing pushing(servers);
  servers.lead_all(1, {2});
  std::vector<int64_t> at(kShards, 1);
  pushing.route(at);
  pushing.start();
  std::mt19937 random(5);
  for (int i = 0; i < 60; i++) {
    const uint32_t shard = random() % kShards;
    const int64_t from = at[shard], to = from == 1 ? 2 : 1;
    servers.wait_installed(from, shard);
    servers.lead(shard, to, {from});
    at[shard] = to;
    pushing.go_on();
    pushing.route(at);
  }
  pushing.check();
}

TEST_P(Backups, AnyServerEndsWhileClientsPush) {
  Servers servers(hosts(), sparse());
  Pushing pushing(servers);
  servers.lead_all(1, {2, 3});
  for (uint32_t shard = 0; shard < kShards; shard++) servers.wait_installed(1, shard);
  pushing.route(std::vector<int64_t>(kShards, 1));
  pushing.start();
  pushing.go_on();
  servers.kill(1);
  pushing.part(1);
  servers.lead_all(2, {3});
  for (uint32_t shard = 0; shard < kShards; shard++) servers.wait_installed(2, shard);
  pushing.route(std::vector<int64_t>(kShards, 2));
  pushing.go_on();
  servers.kill(2);
  pushing.part(2);
  servers.lead_all(3, {});
  pushing.route(std::vector<int64_t>(kShards, 3));
  pushing.go_on();
  pushing.check();
}

INSTANTIATE_TEST_SUITE_P(Hosts, Backups, testing::Values("one", "two"));

}  // namespace
}  // namespace ringcoll::serving
