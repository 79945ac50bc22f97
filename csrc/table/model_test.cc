// Random operations, compared with a plain model of a table: maps, and no thought of speed. A table
// has several shards, and each has a replica, which must have the same bits.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "table/shard_testing.h"
#include "table/sharding.h"

namespace ringcoll {
namespace {

using testing::bytes_of;
using testing::Floats;
using testing::Ids;

constexpr int64_t kIds = 60, kShards = 3, kFirstSetter = 100;  // who sets rules is no worker
constexpr float kMomentum = 0.5F, kFirstValue = 3;

struct Settings {
  std::optional<int64_t> staleness;
  std::optional<int64_t> quorum;
  std::optional<int64_t> max_rows;
  Evict evict = Evict::kAge;

  TableSpec spec() const {
    TableSpec spec = testing::sparse(R"({"rule": "sgd", "lr": 1, "momentum": 0.5})");
    spec.staleness = staleness;
    spec.quorum = quorum;
    spec.max_rows = max_rows;
    spec.evict = evict;
    spec.initial = {.kind = Initial::Kind::kConstant, .first = kFirstValue};
    return spec;
  }
  friend std::ostream& operator<<(std::ostream& out, const Settings& settings) {
    return out << settings.spec().json();
  }
};

// ---- the model

struct ModelRow {
  Floats value = {kFirstValue, kFirstValue}, momentum = {0, 0};
  int64_t pushes = 0, uses = 0, last_use = 0;
};

struct ModelPush {
  int64_t worker, clock;
  Ids ids;
  Floats values;
};

/// What one shard of the table should have.
class ModelShard {
 public:
  explicit ModelShard(const Settings& settings) : settings_(settings) {}

  /// In the order of these pushes.
  void step(const std::vector<const ModelPush*>& pushes, float lr) {
    std::map<int64_t, Floats> sums;
    for (const ModelPush* push : pushes)
      for (size_t i = 0; i < push->ids.size(); i++) {
        const Floats one = {push->values[2 * i], push->values[2 * i + 1]};
        auto [sum, is_first] = sums.try_emplace(push->ids[i], one);
        for (size_t k = 0; k < 2 && !is_first; k++) sum->second[k] += one[k];
      }
    std::set<int64_t> kept;
    for (const auto& [id, unused] : sums)
      if (rows.contains(id)) kept.insert(id);
    for (const auto& [id, sum] : sums) {
      if (!rows.contains(id)) {
        make_room(kept);
        kept.insert(id);
      }
      apply(rows[id], sum, lr);
    }
  }

  std::map<int64_t, ModelRow> rows;
  int64_t uses = 0, evicted = 0;

 private:
  void make_room(std::set<int64_t>& kept) {
    if (!settings_.max_rows || std::ssize(rows) < *settings_.max_rows) return;
    const bool all = std::ranges::all_of(rows, [&](auto& row) { return kept.contains(row.first); });
    if (all) kept.clear();
    give_up(kept);
  }
  void give_up(const std::set<int64_t>& kept) {
    std::set<std::tuple<int64_t, int64_t, int64_t>> order;
    for (const auto& [id, row] : rows)
      if (!kept.contains(id))
        order.emplace(settings_.evict == Evict::kUse ? row.uses : 0, row.last_use, id);
    rows.erase(std::get<2>(*order.begin()));
    evicted++;
  }
  void apply(ModelRow& row, const Floats& gradient, float lr) {
    for (size_t i = 0; i < 2; i++) {
      float& momentum = row.momentum[i];
      momentum = row.pushes == 0 ? gradient[i] : momentum * kMomentum + gradient[i];
      row.value[i] += -lr * momentum;
    }
    row.pushes++;
    row.uses++;
    row.last_use = ++uses;
  }

  Settings settings_;
};

// ---- the table and the model, driven alike

class World {
 public:
  World(const Settings& settings, uint64_t seed)
      : settings_(settings), spec_(settings.spec()), random_(seed) {
    for (int64_t shard = 0; shard < kShards; shard++) {
      shards_.push_back(std::make_unique<testing::OwnShard>(spec_));
      replicas_.push_back(std::make_unique<testing::OwnShard>(spec_));
    }
    models_.assign(kShards, ModelShard(settings));
  }

  void operate() {
    switch (below(20)) {
      case 0:
        return join(below(4));
      case 1:
        return below(4) == 0 ? leave(below(4)) : join(below(4));
      case 11:
        repeat(below(4));
        return send_rule(kFirstSetter + below(2), PushOutcome::kRepeated);
      case 2:
        return end_grace();
      case 3:
        return set_rule();
      case 4:
        return move(static_cast<size_t>(below(kShards)));
      case 5:
      case 6:
      case 7:
      case 8:
      case 9:
      case 10:
        return tick(below(4));
      default:
        return push(below(4));
    }
  }

  void compare() {
    for (size_t i = 0; i < shards_.size(); i++) {
      const Shard& shard = shards_[i]->shard;
      ASSERT_EQ(shard.digest(), replicas_[i]->shard.digest());
      ASSERT_EQ(shard.row_count(), models_[i].rows.size());
      ASSERT_EQ(shard.counters(), replicas_[i]->shard.counters());
      ASSERT_EQ(shard.current_clock(), current_);
      ASSERT_EQ(shard.clocks().workers(), workers_);
      for (const auto& [id, row] : models_[i].rows) {
        ASSERT_NE(shard.find(id), nullptr) << id;
        ASSERT_EQ(shards_[i]->pull({id}), row.value) << id;
        ASSERT_EQ(replicas_[i]->pull({id}), row.value) << id;
      }
      for (int64_t clock = 0; clock < current_ + 6; clock++) {
        const int64_t lacks = clock - settings_.staleness.value_or(clock);
        ASSERT_EQ(shards_[i]->waits_for(clock).has_value(), current_ < lacks);
      }
    }
    for (int64_t id = 0; id < kIds; id++) {
      const auto& rows = models_[shard_of(id)].rows;
      const auto row = rows.find(id);
      const Floats& expected = row == rows.end() ? ModelRow().value : row->second.value;
      ASSERT_EQ(shards_[shard_of(id)]->pull({id}), expected) << id;
    }
  }
  bool has_evicted() const {
    return std::ranges::any_of(models_, [](auto& model) { return model.evicted > 0; });
  }
  int64_t current_clock() const { return current_; }

 private:
  int64_t below(int64_t end) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(end));
  }
  size_t shard_of(int64_t id) const {
    return static_cast<size_t>(ringcoll::shard_of(spec_, id, kShards));
  }
  template <typename Act>
  void on_all(Act&& act) {
    for (size_t i = 0; i < shards_.size(); i++) {
      act(shards_[i]->shard);
      act(replicas_[i]->shard);
    }
  }

  void join(int64_t worker) {
    on_all([&](Shard& shard) { shard.join(worker); });
    if (!workers_.try_emplace(worker, current_).second) return;
    std::erase_if(waiting_, [&](const ModelPush& push) { return push.worker == worker; });
  }
  void leave(int64_t worker) {
    on_all([&](Shard& shard) { shard.leave(worker); });
    if (!workers_.contains(worker)) return;
    const int64_t own = workers_[worker];
    workers_.erase(worker);
    std::erase_if(waiting_, [&](const ModelPush& push) {
      return push.worker == worker && push.clock >= own;
    });
    complete();
  }
  void tick(int64_t worker) {
    if (!workers_.contains(worker)) return;
    const int64_t clock = below(3) == 0 ? std::max(workers_[worker], current_) : workers_[worker];
    if (settings_.staleness && clock > current_ + 4) return;  // as if it waited for a pull
    on_all([&](Shard& shard) { shard.tick(worker, clock); });
    workers_[worker] = clock + 1;
    complete();
  }
  void end_grace() {
    const int64_t clock = current_;
    on_all([&](Shard& shard) { shard.end_grace(clock); });
    grace_ended_ = clock;
    complete();
  }
  void complete() {
    while (true) {
      int64_t finished = 0;
      for (const auto& [worker, clock] : workers_) finished += clock > current_ ? 1 : 0;
      const bool all = finished == std::ssize(workers_);
      const bool quorum =
          settings_.quorum && grace_ended_ >= current_ && finished >= *settings_.quorum;
      if (finished == 0 || !(all || quorum)) return;
      std::ranges::stable_sort(waiting_, {}, &ModelPush::worker);
      for (size_t i = 0; i < shards_.size(); i++) {
        std::vector<ModelPush> parts;
        for (const ModelPush& push : waiting_)
          if (push.clock == current_ &&
              (!workers_.contains(push.worker) || workers_[push.worker] > current_))
            parts.push_back(part(push, i));
        std::vector<const ModelPush*> step;
        for (const ModelPush& push : parts) step.push_back(&push);
        models_[i].step(step, lr_);
      }
      std::erase_if(waiting_, [&](const ModelPush& push) { return push.clock == current_; });
      current_++;
    }
  }

  /// What goes to one shard.
  ModelPush part(const ModelPush& push, size_t shard) const {
    ModelPush part{push.worker, push.clock, {}, {}};
    for (size_t i = 0; i < push.ids.size(); i++) {
      if (shard_of(push.ids[i]) != shard) continue;
      part.ids.push_back(push.ids[i]);
      part.values.insert(part.values.end(), {push.values[2 * i], push.values[2 * i + 1]});
    }
    return part;
  }

  /// A worker that was left behind is late, or goes on at the current clock.
  int64_t clock_to_push(int64_t worker) {
    const int64_t own = workers_[worker];
    return own < current_ && below(2) == 0 ? current_ : own;
  }
  void add_random_rows(ModelPush& push) {
    const int64_t count = below(8) == 0 ? 30 : below(6);
    for (int64_t i = 0; i < count; i++) {
      push.ids.push_back(below(2) == 0 ? below(kIds) : below(8));
      for (int k = 0; k < 2; k++) push.values.push_back(static_cast<float>(below(1000)) / 7);
    }
  }
  void push(int64_t worker) {
    const bool strict = settings_.staleness == 0;
    if (strict && !workers_.contains(worker)) return;
    ModelPush push{worker, strict ? clock_to_push(worker) : 0, {}, {}};
    add_random_rows(push);
    number_++;
    const PushOutcome expected = !strict                 ? PushOutcome::kApplied
                                 : push.clock < current_ ? PushOutcome::kLate
                                                         : PushOutcome::kWaits;
    for (size_t i = 0; i < shards_.size(); i++) send(i, number_, push, expected);
    if (expected == PushOutcome::kWaits) waiting_.push_back(push);
    last_[worker] = {number_, push};
  }
  /// The answer to a worker's last push was lost, and shards may have moved since.
  void repeat(int64_t worker) {
    const auto last = last_.find(worker);
    if (last == last_.end()) return;
    const auto& [number, push] = last->second;
    for (size_t i = 0; i < shards_.size(); i++) send(i, number, push, PushOutcome::kRepeated);
  }
  void send(size_t i, int64_t number, const ModelPush& push, PushOutcome expected) {
    const ModelPush mine = part(push, i);
    if (mine.ids.empty()) return;
    for (const auto& to : {shards_[i].get(), replicas_[i].get()})
      ASSERT_EQ(to->shard.push(mine.worker, number, mine.clock,
                               {mine.ids, RC_FLOAT32, bytes_of(mine.values)}),
                expected);
    if (expected == PushOutcome::kApplied) models_[i].step({&mine}, lr_);
  }

  void set_rule() {
    const int64_t client = kFirstSetter + below(2);
    lr_ = static_cast<float>(1 + below(3)) / 4;
    last_rule_.insert_or_assign(
        client,
        std::pair(++number_, rules::Sgd{.lr = static_cast<double>(lr_), .momentum = kMomentum}));
    send_rule(client, PushOutcome::kApplied);
  }
  void send_rule(int64_t client, PushOutcome expected) {
    const auto last = last_rule_.find(client);
    if (last == last_rule_.end()) return;
    const auto& [number, parameters] = last->second;
    on_all([&](Shard& shard) {
      EXPECT_EQ(shard.set_rule(client, number, Rule(parameters)), expected);
    });
  }

  /// A shard goes to another server as bytes, and its replica is filled from there.
  void move(size_t i) {
    const auto bytes = testing::encoded(shards_[i]->shard.snapshot());
    shards_[i] = std::make_unique<testing::OwnShard>(spec_, Range{}, decode(spec_, bytes));
    replicas_[i] =
        std::make_unique<testing::OwnShard>(spec_, Range{}, shards_[i]->shard.snapshot());
    ASSERT_EQ(testing::encoded(replicas_[i]->shard.snapshot()), bytes);
  }

  Settings settings_;
  TableSpec spec_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<testing::OwnShard>> shards_, replicas_;
  std::vector<ModelShard> models_;
  std::map<int64_t, int64_t> workers_;
  std::vector<ModelPush> waiting_;
  std::map<int64_t, std::pair<int64_t, ModelPush>> last_;  // push of each worker, with its number
  std::map<int64_t, std::pair<int64_t, rules::Sgd>>
      last_rule_;  // of each who has set one, likewise
  int64_t current_ = 0, grace_ended_ = -1, number_ = 0;
  float lr_ = 1;
};

class Model : public ::testing::TestWithParam<Settings> {};

TEST_P(Model, AgreesWithTheShards) {
  int64_t clocks = 0;
  bool has_evicted = false;
  for (uint64_t seed = 0; seed < 20; seed++) {
    World world(GetParam(), seed);
    for (int step = 0; step < 400; step++) {
      world.operate();
      if (step % 7 == 0) world.compare();
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << ", step " << step;
    }
    clocks += world.current_clock();
    has_evicted |= world.has_evicted();
  }
  EXPECT_GT(clocks, 20 * 10);  // something has happened
  EXPECT_EQ(has_evicted, GetParam().max_rows.has_value());
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Model,
    ::testing::Values(Settings{}, Settings{.staleness = 0}, Settings{.staleness = 2},
                      Settings{.staleness = 0, .quorum = 2},
                      Settings{.max_rows = 9, .evict = Evict::kAge},
                      Settings{.max_rows = 9, .evict = Evict::kUse},
                      Settings{.staleness = 0, .quorum = 1, .max_rows = 12, .evict = Evict::kUse}),
    [](const auto& info) { return fmt::format("{}", info.index); });

}  // namespace
}  // namespace ringcoll
