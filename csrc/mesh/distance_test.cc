// Who takes the distance of which peer, and when.
#include <gtest/gtest.h>

#include <barrier>
#include <set>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "mesh/ranks_testing.h"

namespace ringcoll {
namespace {

using State = Distance::State;

TEST(DistanceTurns, AreThoseOfBothRanksOfAPairAndOfEachPair) {
  for (size_t count = 1; count <= 9; count++)
    for (size_t place = 0; place < count; place++) {
      std::set<size_t> met;
      for (uint64_t turn = 1000; turn < 1000 + count; turn++) {
        size_t other = Channels::opposite(place, turn, count);
        ASSERT_LT(other, count);
        EXPECT_EQ(Channels::opposite(other, turn, count), place);
        met.insert(other);
      }
      EXPECT_EQ(met.size(), count);
    }
}

/// What every rank of a mesh that has just been made says of each.
std::vector<std::vector<Distance>> distances_at_the_start(Rank size, const std::string& transport) {
  std::vector<std::vector<Distance>> found(size, std::vector<Distance>(size));
  std::barrier all(size);
  auto errors = testing::run_ranks({static_cast<size_t>(size), testing::config_of(transport)},
                                   [&](Mesh& mesh) {
                                     all.arrive_and_wait();
                                     for (Rank peer = 0; peer < size; peer++)
                                       found[mesh.rank()][peer] = mesh.whole().distance(peer);
                                     all.arrive_and_wait();
                                   });
  EXPECT_EQ(errors, std::vector<std::string>(size));
  return found;
}

void expect_alike(const std::vector<std::vector<Distance>>& found) {
  for (size_t a = 0; a < found.size(); a++)
    for (size_t b = 0; b < found.size(); b++) {
      EXPECT_EQ(found[a][b].state, found[b][a].state) << a << " " << b;
      EXPECT_EQ(found[a][b].round_trip_ns, found[b][a].round_trip_ns) << a << " " << b;
      EXPECT_TRUE(a != b || found[a][b].state == State::kUnknown);
    }
}

// On a machine that is busy with something else a start may be without.
TEST(DistanceAtTheStart, IsThatOfNeighbours) {
  Deadline deadline(seconds(100));
  for (bool known = false; !known;) {
    ASSERT_FALSE(deadline.passed());
    auto found = distances_at_the_start(2, "shm");
    expect_alike(found);
    known = found[0][1].state != State::kUnknown;
  }
}

TEST(DistanceAtTheStart, IsTheSameForBothAlsoOfRanksThatShareCores) {
  for (Rank size : {3, 5}) expect_alike(distances_at_the_start(size, "shm"));
}

TEST(DistanceAtTheStart, IsNotThatOfLinksOfANetwork) {
  for (const auto& of_rank : distances_at_the_start(2, "tcp"))
    for (const Distance& distance : of_rank) EXPECT_EQ(distance.state, State::kUnknown);
}

}  // namespace
}  // namespace ringcoll
