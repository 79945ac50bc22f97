#include "life/flooded.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "life/lifeline_messages.h"

namespace ringcoll {
namespace {

using Set = Survivors::Set;

std::string vote(Rank from, const Set& gone, uint64_t round) {
  return lifeline::encode(7, round, {from, gone, false, "an offer"});
}
std::string decision(Rank from, const Set& gone, uint64_t round) {
  return lifeline::encode(7, round, {from, gone, true, ""});
}

TEST(Flooded, IsPassedOnOnce) {
  Flooded flooded;
  EXPECT_TRUE(flooded.add_failure(7, Error(Code::kAborted, "stop", 1)));
  EXPECT_FALSE(flooded.add_failure(7, Error(Code::kTimeout, "late", 2)));
  ASSERT_NE(flooded.failure_of(7), nullptr);
  EXPECT_STREQ(flooded.failure_of(7)->what(), "stop");
  EXPECT_EQ(flooded.failure_of(8), nullptr);
  EXPECT_TRUE(flooded.add_ballot(7, 1, vote(0, Set(3), 1)));
  EXPECT_FALSE(flooded.add_ballot(7, 1, vote(0, Set(3), 1)));
  EXPECT_TRUE(flooded.add_ballot(7, 1, vote(1, Set(3), 1)));
  EXPECT_EQ(flooded.ballots(7, 1, 1), std::vector<std::string>{vote(1, Set(3), 1)});
  EXPECT_EQ(flooded.messages().size(), 3u);
}

// Of groups of any size, by who is in them and who is not.
TEST(Flooded, ForgetsARoundWhenAllWhoAreLeftHaveDecided) {
  for (size_t ranks : {2, 8, 13}) {
    Set gone(ranks);
    gone[1] = true;
    Flooded flooded;
    for (uint64_t round = 1; round <= 2; round++)
      for (bool decided : {false, true})
        for (Rank r = 0; r < static_cast<Rank>(ranks); r++) {
          if (gone[r]) continue;
          std::string message = decided ? decision(r, gone, round) : vote(r, gone, round);
          EXPECT_TRUE(flooded.add_ballot(7, round, message));
        }
    std::string last = decision(static_cast<Rank>(ranks == 2 ? 0 : ranks - 1), gone, 2);
    EXPECT_EQ(flooded.messages(), std::vector<std::string>{last}) << ranks;
    for (uint64_t round : {1, 2}) {
      EXPECT_FALSE(flooded.add_ballot(7, round, vote(0, gone, round)));
      EXPECT_EQ(flooded.ballots(7, round, 5), std::vector<std::string>{last})
          << "whoever is held for gone and comes late learns it";
    }
    EXPECT_TRUE(flooded.add_ballot(7, 3, vote(0, gone, 3)));
  }
}

TEST(Flooded, KeepsWhatOneWhoIsLeftHasNotDecided) {
  Flooded flooded;
  for (Rank r : {0, 1, 2}) flooded.add_ballot(7, 1, vote(r, Set(3), 1));
  for (Rank r : {0, 2}) flooded.add_ballot(7, 1, decision(r, Set(3), 1));
  EXPECT_EQ(flooded.ballots(7, 1, 0).size(), 5u);
}

TEST(Flooded, DoesNotGrowForEver) {
  Flooded flooded;
  size_t full = 0;
  for (GroupNumber group = 1; group <= 3 * Flooded::kMostRemembered; group++) {
    EXPECT_TRUE(flooded.add_failure(group, Error(Code::kAborted, "stop", 1)));
    EXPECT_TRUE(flooded.add_ballot(group, 1, vote(0, Set(3), 1)));
    if (group == Flooded::kMostRemembered) full = flooded.bytes();
  }
  EXPECT_EQ(flooded.bytes(), full);
}

}  // namespace
}  // namespace ringcoll
