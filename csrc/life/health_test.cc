// Groups of ranks fail one by one.
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "life/lifelines_testing.h"

namespace ringcoll {
namespace {

using testing::bytes_of, testing::contains, testing::join, testing::kMagicWord,
    testing::kVersionWord, testing::make_pair, testing::mesh, testing::Node, testing::second_word,
    testing::soon;

/// A group, by the rank in it.
class Groups {
 public:
  Groups(std::vector<std::unique_ptr<Node>>& nodes, GroupNumber number,
         const std::vector<Rank>& members)
      : poisons(members.size()) {
    for (size_t i = 0; i < members.size(); i++)
      of.push_back(nodes[members[i]]->of_group(number, members, poisons[i]));
  }
  std::vector<std::atomic<int>> poisons;
  std::vector<std::unique_ptr<Health>> of;
};

std::vector<std::unique_ptr<Node>> chain(Rank size) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (Rank rank = 0; rank < size; rank++) nodes.push_back(std::make_unique<Node>(rank, size));
  for (Rank rank = 0; rank + 1 < size; rank++) join(*nodes[rank], rank, *nodes[rank + 1], rank + 1);
  return nodes;
}

// Over ranks that are not in it, for those who are have no line.
TEST(HealthOfGroups, AnErrorReachesItsRanksAndNobodyElse) {
  auto nodes = chain(4);
  Groups ends(nodes, 7, {3, 0}), others(nodes, 8, {0, 1, 2, 3});
  ends.of[0]->poison(Error(Code::kMismatch, "they disagree", 1));
  ASSERT_TRUE(soon([&] { return ends.poisons[1] == 1; }));
  EXPECT_STREQ(ends.of[1]->error().what(), "they disagree");
  EXPECT_EQ(ends.of[1]->error().rank(), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (const auto& health : others.of) EXPECT_FALSE(health->poisoned());
  for (const auto& node : nodes) EXPECT_FALSE(node->health->poisoned());
  // The others may fail after it.
  others.of[2]->poison(Error(Code::kAborted, "stop", 2));
  for (auto& poisons : others.poisons) EXPECT_TRUE(soon([&] { return poisons == 1; }));
}

TEST(HealthOfGroups, ALostRankFailsThoseThatItIsIn) {
  auto nodes = chain(4);
  Groups with(nodes, 7, {3, 0}), without(nodes, 8, {2, 0});
  auto ends = make_pair();
  nodes[1]->lines->add(3, std::move(ends[0]));
  std::string hello =
      bytes_of({kMagicWord, second_word(kVersionWord, 5, 0), 0, 0xffffffff, 0, 0, 0, 0});
  send_all(ends[1].get(), hello.data(), hello.size(), Deadline(seconds(5)), "test");
  ends[1].reset();
  ASSERT_TRUE(soon([&] { return with.poisons[1] == 1 && nodes[0]->poisons == 1; }));
  EXPECT_EQ(with.of[1]->error().code(), Code::kPeerLost);
  EXPECT_EQ(with.of[1]->error().rank(), 0) << "its rank in the group";
  EXPECT_TRUE(contains(with.of[1]->error(), "rank 3 (pid 7 on here)"));
  EXPECT_TRUE(contains(with.of[1]->error(), "rank 0 of this group")) << with.of[1]->error().what();
  EXPECT_EQ(nodes[0]->health->error().rank(), 3);
  EXPECT_FALSE(without.of[1]->poisoned());
}

TEST(HealthOfGroups, OneThatIsMadeLaterHasWhatWasTold) {
  auto nodes = chain(3);
  {
    Groups early(nodes, 7, {0, 2});
    early.of[0]->poison(Error(Code::kAborted, "stop", 0));
    ASSERT_TRUE(soon([&] { return early.poisons[1] == 1; }));
  }
  std::atomic<int> poisons{0};
  auto late = nodes[1]->of_group(7, {0, 1}, poisons);
  EXPECT_TRUE(late->poisoned());
  EXPECT_EQ(poisons, 1);
}

TEST(HealthOfGroups, WhoLeavesOneIsStillInTheOthers) {
  auto nodes = mesh(3);
  Groups left(nodes, 7, {2, 1, 0}), kept(nodes, 8, {2, 1, 0});
  left.of[0]->leave();
  ASSERT_TRUE(soon([&] { return left.of[1]->gone(0) && left.of[2]->gone(0); }));
  EXPECT_FALSE(kept.of[1]->gone(0));
  EXPECT_FALSE(left.of[1]->gone(2));
  EXPECT_FALSE(nodes[1]->health->gone(2));
  Error error = left.of[1]->blame(0, "allreduce #7", seconds(5));
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_EQ(error.rank(), 0);
  EXPECT_EQ(left.poisons[0] + left.poisons[1] + kept.poisons[1], 0);
}

// Whether a rank leaves before others do or after, and whether it was in the group or not.
TEST(HealthOfGroups, NothingIsKeptOfThoseThatAllHaveLeft) {
  auto nodes = mesh(3);
  for (GroupNumber id = 7; id < 27; id++) {
    Groups some(nodes, id, id % 2 == 0 ? std::vector<Rank>{2, 1, 0} : std::vector<Rank>{0, 2});
    some.of[id % some.of.size()]->leave();
  }
  for (const auto& node : nodes)
    EXPECT_TRUE(soon([&] { return node->lines->remembered() == 0; })) << node->lines->remembered();
}

TEST(HealthOfGroups, EachHasItsOwnWaits) {
  auto nodes = mesh(3);
  Groups one(nodes, 7, {2, 1, 0}), two(nodes, 8, {2, 1, 0});
  one.of[1]->set_waiting_for(0);
  EXPECT_EQ(one.of[2]->blame(1, "allreduce #3", seconds(20)).rank(), 0);
  EXPECT_EQ(two.of[2]->blame(1, "allreduce #3", seconds(20)).rank(), 1);
}

/// Remembers what it hears, and wants so many ticks.
class Ear final : public HealthListener {
 public:
  explicit Ear(int ticks) : ticks_(ticks) {}
  bool tick() override { return ++ticked_ % ticks_ != 0; }
  void hear(Rank from, std::string_view calls) override {
    std::lock_guard lock(mutex_);
    heard_.push_back(fmt::format("{}: {}", from, calls));
  }
  int ticked() const { return ticked_; }
  std::vector<std::string> heard() {
    std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  const int ticks_;
  std::atomic<int> ticked_{0};
  std::mutex mutex_;
  std::vector<std::string> heard_;
};

TEST(HealthOfGroups, CallsAreToldToThoseWhoListen) {
  auto nodes = chain(3);
  Groups group(nodes, 7, {2, 1, 0}), other(nodes, 8, {2, 1, 0});
  std::deque<Ear> ears;
  for (size_t rank = 0; rank < 3; rank++) group.of[rank]->listen(&ears.emplace_back(1));
  EXPECT_EQ(group.of[0]->listeners(), std::vector<Rank>{1}) << "no line joins the ends";
  EXPECT_EQ(group.of[1]->listeners().size(), 2u);
  const std::string binary("a\0b", 3);
  group.of[0]->tell_calls(1, binary);
  group.of[0]->tell_calls(2, "nobody hears that");
  other.of[2]->tell_calls(1, "nor that");
  group.of[2]->tell_calls(1, "c");
  ASSERT_TRUE(soon([&] { return ears[1].heard().size() == 2; }));
  EXPECT_EQ(std::ranges::count(ears[1].heard(), "0: " + binary), 1);
  EXPECT_EQ(std::ranges::count(ears[1].heard(), "2: c"), 1);
  group.of[1]->listen(nullptr);
  group.of[0]->tell_calls(1, "too late");
  group.of[0]->poison(Error(Code::kAborted, "stop", 0));  // comes after it
  ASSERT_TRUE(soon([&] { return group.poisons[1] == 1; }));
  EXPECT_EQ(ears[1].heard().size(), 2u);
  for (auto& health : group.of) health->listen(nullptr);
}

TEST(HealthOfGroups, TicksEndWhenTheListenerWantsNoMore) {
  auto nodes = chain(2);
  Groups group(nodes, 7, {0, 1});
  Ear ear(3);
  group.of[0]->listen(&ear);
  EXPECT_EQ(ear.ticked(), 0);
  group.of[0]->tick();
  group.of[0]->tick();
  ASSERT_TRUE(soon([&] { return ear.ticked() == 3; }));
  std::this_thread::sleep_for(2 * Health::kTick);
  EXPECT_EQ(ear.ticked(), 3);
  group.of[0]->tick();
  ASSERT_TRUE(soon([&] { return ear.ticked() > 3; }));
  group.of[0]->listen(nullptr);
  int ticked = ear.ticked();
  std::this_thread::sleep_for(2 * Health::kTick);
  EXPECT_EQ(ear.ticked(), ticked);
}

}  // namespace
}  // namespace ringcoll
