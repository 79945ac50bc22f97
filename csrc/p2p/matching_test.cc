// Matching against a model that is as simple as can be.
#include "p2p/matching.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

namespace ringcoll {
namespace {

bool fits(const Transfer& receive, Rank source, int32_t tag) {
  return (receive.peer == kAnySource || receive.peer == source) &&
         (receive.tag == kAnyTag || receive.tag == tag);
}

Transfer receive_of(Rank source, int32_t tag) {
  Transfer receive;
  receive.receives = true;
  receive.peer = source;
  receive.tag = tag;
  return receive;
}

ArrivalPtr arrival_of(Rank source, int32_t tag, uint64_t bytes) {
  auto arrival = std::make_unique<Arrival>();
  arrival->source = source;
  arrival->tag = tag;
  arrival->bytes = bytes;
  return arrival;
}

TEST(Matching, FindsTheOldestOfEitherSideInRandomStories) {
  for (uint64_t seed = 0; seed < 200; seed++) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    auto below = [&](int n) { return static_cast<int32_t>(random() % n); };
    Matching matching;
    std::deque<Transfer> all;
    std::vector<Transfer*> receives;  // the model: that are posted, the oldest first
    std::vector<Arrival*> arrivals;   // and that have come
    for (int step = 0; step < 300; step++) {
      int what = below(10);
      if (what < 4) {
        Rank source = below(3);
        int32_t tag = below(3);
        auto expected = std::ranges::find_if(
            receives, [&](const Transfer* receive) { return fits(*receive, source, tag); });
        Transfer* taken = matching.take(source, tag);
        ASSERT_EQ(taken, expected == receives.end() ? nullptr : *expected);
        if (taken)
          receives.erase(expected);
        else
          arrivals.push_back(matching.keep(arrival_of(source, tag, step)));
      } else if (what < 9) {
        Transfer& receive = all.emplace_back(receive_of(below(4) - 1, below(4) - 1));
        auto expected = std::ranges::find_if(arrivals, [&](const Arrival* arrival) {
          return fits(receive, arrival->source, arrival->tag);
        });
        Arrival* found = matching.find(receive);
        ASSERT_EQ(found, expected == arrivals.end() ? nullptr : *expected);
        if (found) {
          arrivals.erase(expected);
          EXPECT_EQ(matching.remove(found).get(), found);
        } else {
          matching.post(&receive);
          receives.push_back(&receive);
        }
      } else if (!receives.empty()) {
        auto some = receives.begin() + below(static_cast<int>(receives.size()));
        matching.withdraw(*some);
        receives.erase(some);
      }
      ASSERT_EQ(matching.arrivals(), arrivals.size());
    }
  }
}

TEST(Matching, AReceiveFromAnybodyTakesWhatCameFirst) {
  Matching matching;
  for (Rank source : {2, 0, 1}) matching.keep(arrival_of(source, 5, 1));
  Transfer any = receive_of(kAnySource, 5);
  for (Rank source : {2, 0, 1}) {
    Arrival* found = matching.find(any);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(matching.remove(found)->source, source);
  }
  EXPECT_EQ(matching.find(any), nullptr);
}

TEST(Matching, AReceiveThatDoesNotRemoveLeavesTheMessage) {
  Matching matching;
  matching.keep(arrival_of(0, 1, 10));
  Transfer receive = receive_of(0, kAnyTag);
  EXPECT_EQ(matching.find(receive), matching.find(receive));
  EXPECT_EQ(matching.arrivals(), 1u);
  matching.clear();
  EXPECT_EQ(matching.find(receive), nullptr);
}

}  // namespace
}  // namespace ringcoll
