// A communicator and one of some of its ranks, which are threads of one process.
#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <barrier>
#include <string>
#include <utility>
#include <vector>

#include "mesh/ranks_testing.h"

namespace ringcoll {
namespace {

using testing::config_of;

TEST(Communicator, OfSomeRanksIsOnTheSameMesh) {
  std::vector<Group::Offer> offers(3);
  std::barrier all(3);
  auto be = [&](const Config& config, Exchange& exchange) {
    auto whole = std::make_unique<Communicator>(config, "whole", exchange);
    Rank rank = whole->rank();
    EXPECT_EQ(whole->size(), 3);
    EXPECT_EQ(whole->name(), "whole");
    auto group = whole->part(std::vector<Rank>{2, 0, 1});
    offers[rank] = group->offer();
    all.arrive_and_wait();
    group->join(std::vector{offers[2], offers[0], offers[1]});
    Communicator part(std::move(group), "part");
    EXPECT_EQ(part.rank(), (rank + 1) % 3);
    EXPECT_EQ(part.name(), "part");
    EXPECT_EQ(&part.group().mesh(), &whole->group().mesh());
    // Of a part of it, ranks are those of the part.
    auto pair = part.part(std::vector<Rank>{part.rank()});
    EXPECT_EQ(pair->members(), std::vector<Rank>{rank});
    all.arrive_and_wait();
    whole.reset();
    EXPECT_FALSE(part.poisoned());
    all.arrive_and_wait();
    EXPECT_EQ(part.fail(Error(Code::kAborted, "enough", part.rank())).code(), Code::kAborted);
    EXPECT_TRUE(part.poisoned());
    all.arrive_and_wait();
  };
  EXPECT_EQ(testing::run_exchanges({3, config_of("loopback")}, be), std::vector<std::string>(3));
}

}  // namespace
}  // namespace ringcoll
