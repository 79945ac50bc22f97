#include "life/survivors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace ringcoll {
namespace {

using Ballot = Survivors::Ballot;
using Set = Survivors::Set;

std::string offer_of(Rank rank, const Set& gone) {
  return std::to_string(rank) + "/" + std::to_string(std::ranges::count(gone, true));
}

/// Ranks that end by chance, and what they say, on its way by chance: what one says comes to each
/// in order, or not at all to some if it ends meanwhile; but what anybody who lives has heard, all
/// who live hear, for it is passed on.
class Story {
 public:
  Story(Rank size, unsigned seed) : random_(seed), ranks_(size) {
    for (Rank r = 0; r < size; r++) {
      ranks_[r].state = std::make_unique<Survivors>(r, size);
      ranks_[r].in.resize(size);
    }
  }

  void tell(const std::string& how_many_end) {
    int ends = how_many_end == "many" ? static_cast<int>(ranks_.size()) - 1 : 1;
    end_one(), ends--;
    for (int turn = 0; turn < 100000 && !all_have_decided(); turn++) {
      if (ends > 0 && random_() % 60 == 0) end_one(), ends--;
      step(static_cast<Rank>(random_() % ranks_.size()));
    }
  }
  bool all_have_decided() const {
    return std::ranges::all_of(ranks_, [](const One& one) {
      return one.ended || one.state->decided() || one.state->excluded();
    });
  }
  /// Of those who live.
  std::vector<const Survivors*> living() const {
    std::vector<const Survivors*> found;
    for (const One& one : ranks_)
      if (!one.ended) found.push_back(one.state.get());
    return found;
  }
  bool ended(Rank rank) const { return ranks_[rank].ended; }

 private:
  struct One {
    std::unique_ptr<Survivors> state;
    std::vector<std::deque<Ballot>> in;  // by who passes it on
    std::vector<Ballot> heard;           // all that it has said or passed on
    bool ended = false;
    bool has_told = false;
  };

  void end_one() {
    std::vector<Rank> alive;
    for (Rank r = 0; r < static_cast<Rank>(ranks_.size()); r++)
      if (!ranks_[r].ended) alive.push_back(r);
    if (alive.size() < 2) return;
    Rank who = alive[random_() % alive.size()];
    ranks_[who].ended = true;
    // What it has sent last may not have left.
    for (One& one : ranks_) {
      auto& queue = one.in[who];
      while (!queue.empty() && random_() % 2 == 0) queue.pop_back();
    }
    losses_.push_back(who);
  }

  void pass_on(Rank by, const Ballot& ballot) {
    One& one = ranks_[by];
    bool known = std::ranges::any_of(one.heard, [&](const Ballot& each) {
      return each.from == ballot.from && each.gone == ballot.gone && each.decided == ballot.decided;
    });
    if (known) return;
    one.heard.push_back(ballot);
    one.state->take(ballot);
    for (Rank to = 0; to < static_cast<Rank>(ranks_.size()); to++)
      if (to != by) ranks_[to].in[by].push_back(ballot);
  }

  void step(Rank who) {
    One& one = ranks_[who];
    if (one.ended) return;
    switch (random_() % 3) {
      case 0: {
        auto& queue = one.in[random_() % ranks_.size()];
        if (queue.empty()) break;
        Ballot next = queue.front();
        queue.pop_front();
        pass_on(who, next);
        break;
      }
      case 1:
        if (!losses_.empty()) one.state->lose(losses_[random_() % losses_.size()]);
        break;
      default:
        if (one.state->decided() && !one.has_told) {
          one.has_told = true;
          pass_on(who, {who, *one.state->decided(), true, ""});
        } else if (auto set = one.state->due()) {
          pass_on(who, {who, *set, false, offer_of(who, *set)});
        }
    }
  }

  std::mt19937 random_;
  std::vector<One> ranks_;
  std::vector<Rank> losses_;
};

class Stories : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, Stories, ::testing::Values("one", "many"),
                         [](const auto& info) { return std::string(info.param) + "_end"; });

TEST_P(Stories, EndWithOneAnswerForAllWhoLive) {
  size_t with_somebody_gone_in_it = 0;
  for (Rank size : {2, 3, 5, 8})
    for (unsigned seed = 0; seed < 400; seed++) {
      Story story(size, seed);
      story.tell(GetParam());
      ASSERT_TRUE(story.all_have_decided()) << size << " ranks, seed " << seed;
      auto living = story.living();
      const Set& answer = *living.front()->decided();
      for (const Survivors* each : living) {
        ASSERT_FALSE(each->excluded());
        ASSERT_EQ(*each->decided(), answer) << size << " ranks, seed " << seed;
        std::vector<std::string> offers = each->offers();
        for (Rank r = 0; r < size; r++) {
          ASSERT_TRUE(!answer[r] || story.ended(r)) << "rank " << r << " lives";
          ASSERT_EQ(offers[r], answer[r] ? "" : offer_of(r, answer));
        }
      }
      for (Rank r = 0; r < size; r++) with_somebody_gone_in_it += !answer[r] && story.ended(r);
    }
  // Who ends after all have voted is among those who are left, and is found by their next call.
  if (std::string(GetParam()) == "many") {
    EXPECT_GT(with_somebody_gone_in_it, 0u);
  }
}

TEST(Survivors, OneWhoIsHeldForGoneLearnsIt) {
  Survivors wronged(1, 3);
  EXPECT_EQ(wronged.due(), Set(3));
  wronged.take({0, {false, true, false}, false, "x"});
  EXPECT_TRUE(wronged.excluded());
  EXPECT_FALSE(wronged.due());
}

TEST(Survivors, KnowWhomTheyWaitFor) {
  Survivors one(0, 4);
  one.lose(2);
  one.take({0, *one.due(), false, "a"});
  EXPECT_EQ(one.awaited(), (std::vector<Rank>{1, 3}));
  one.take({3, {false, false, true, false}, false, "b"});
  EXPECT_EQ(one.awaited(), std::vector<Rank>{1});
  one.take({1, {false, false, false, false}, false, "c"});
  EXPECT_EQ(one.awaited(), std::vector<Rank>{1}) << "it has voted for another set";
  EXPECT_FALSE(one.decided());
  one.take({1, {false, false, true, false}, false, "d"});
  EXPECT_EQ(one.decided(), (Set{false, false, true, false}));
  EXPECT_EQ(one.offers(), (std::vector<std::string>{"a", "d", "", "b"}));
}

// A rank of another size of group, or none.
TEST(Survivors, PayNoAttentionToNonsense) {
  Survivors one(0, 2);
  one.take({5, {false, true}, true, ""});
  one.take({1, {true}, true, ""});
  one.take({-1, {true, true}, true, ""});
  EXPECT_FALSE(one.decided());
  EXPECT_FALSE(one.excluded());
}

}  // namespace
}  // namespace ringcoll
