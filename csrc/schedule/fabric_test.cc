// What schedules cost on a fabric: by the steps of all ranks, and by the closed form of a row.
#include "schedule/fabric.h"

#include <gtest/gtest.h>

#include <limits>

#include "schedule/simulator_testing.h"

namespace ringcoll {
namespace {

/// Hosts whose memory is fast, a network a hundred times slower, a spine that is oversubscribed.
Fabric fabric_of(std::vector<Groups> levels) {
  Fabric fabric = {.groups = std::move(levels), .links = {}, .combined_bytes_per_us = 10000};
  fabric.links.push_back({0.5, 8000, 12000});
  if (fabric.groups.size() > 1) fabric.links.push_back({30, 100, 125});
  if (fabric.groups.size() > 2) fabric.links.push_back({50, 90, 200});
  return fabric;
}

Profile closed(const ScheduleRow& row, const Fabric& fabric) {
  Problem problem{.size = fabric.ranks(), .levels = fabric.groups};
  return profile_of(row.traffic(problem), fabric);
}
constexpr auto kNoLimit = std::numeric_limits<int64_t>::max();

Profile walked(const ScheduleRow& row, const Fabric& fabric, bool one_domain = false) {
  Problem problem{.size = fabric.ranks(), .levels = fabric.groups};
  return profile_of(traffic_of(row, problem, kNoLimit, one_domain), fabric);
}

Profile closed_or_walked(const ScheduleRow& row, const Fabric& fabric) {
  return row.traffic ? closed(row, fabric) : walked(row, fabric);
}

/// `near`: how far the times may be from each other.
void expect_equal(const Profile& closed, const Profile& walked, double near,
                  const std::string& what) {
  EXPECT_NEAR(closed.latency_us, walked.latency_us, near * walked.latency_us) << what;
  EXPECT_NEAR(closed.us_per_byte, walked.us_per_byte, near * walked.us_per_byte) << what;
  EXPECT_NEAR(closed.busiest_us_per_byte, walked.busiest_us_per_byte,
              near * walked.busiest_us_per_byte)
      << what;
}

/// Rows that are priced as if the blocks of unequal hosts were of one length.
bool takes_the_mean(const ScheduleRow& row, const Fabric& fabric) {
  bool chunked = row.collective == RC_ALLGATHER || row.collective == RC_REDUCE_SCATTER;
  const Groups& hosts = fabric.groups.front();
  return chunked && row.name == "direct/ring" && hosts.size_of(0) * hosts.count() != fabric.ranks();
}

// Every row with a closed form, on every size and on hosts of every size, with leaves and without.
TEST(Traffic, OfClosedFormsIsThatOfTheSchedules) {
  int compared = 0;
  for (const ScheduleRow& row : schedules()) {
    if (!row.traffic) continue;
    for (Rank size = 2; size <= 48; size++)
      for (Rank hosts : {0, 3})
        for (Rank ranks : {1, 2, 4, 5}) {
          Fabric fabric = fabric_of(simulator::cluster_of(size, ranks, hosts));
          Problem problem{.size = size, .levels = fabric.groups};
          if (!is_offered(row, fabric, false) || row.traffic(problem).empty()) continue;
          expect_equal(closed(row, fabric), walked(row, fabric),
                       takes_the_mean(row, fabric) ? 0.5 : 1e-4,
                       std::string(name_of(row.collective)) + " " + std::string(row.name) + " of " +
                           std::to_string(size) + " ranks, " + std::to_string(ranks) + " a host");
          compared++;
        }
  }
  EXPECT_GT(compared, 1000);
}

// Ranks that know no levels are one host.
TEST(Traffic, OfARingLoadsEachPortOnce) {
  const ScheduleRow& ring = *find_schedule(RC_ALLREDUCE, "ring");
  Fabric fabric = fabric_of(simulator::cluster_of(8, 2, 0));
  Profile profile = closed(ring, fabric);
  // Every second hop of a message is within a host, and all go round at the same time.
  EXPECT_DOUBLE_EQ(profile.latency_us, 2 * (4 * 30 + 3 * 0.5));
  // One of the two ranks sends 14/8 of the vector to the next host: as fast as one rank can.
  EXPECT_NEAR(profile.us_per_byte, 14.0 / 8 / 100, 1e-12);
  EXPECT_NEAR(profile.busiest_us_per_byte, 14.0 / 8 / 100, 1e-12);
}

// The bound: over each host's port goes 2n(H-1)/H, and all of its ranks drive it.
TEST(Traffic, OfLanesIsTheBoundOfTheNetwork) {
  for (auto [hosts, ranks] : {std::pair<Rank, Rank>{2, 2}, {4, 2}, {2, 4}, {5, 4}, {3, 2}}) {
    Fabric fabric = fabric_of(simulator::cluster_of(hosts * ranks, ranks, 0));
    Profile lanes = closed(*find_schedule(RC_ALLREDUCE, "direct/ring"), fabric);
    double bound = 2.0 * (hosts - 1) / hosts / 125;
    EXPECT_NEAR(lanes.busiest_us_per_byte, bound, 1e-9) << hosts << " x " << ranks;
  }
}

// Two ranks with a port each: what both give is for both. One rank alone has its own port only.
TEST(Traffic, OfSeveralPortsLoadsEach) {
  Fabric one = fabric_of(simulator::cluster_of(8, 2, 0)), two = one;
  for (Rank rank = 0; rank < 8; rank++) two.ports.push_back(rank);
  one.links[1] = {30, 125, 125};
  two.links[1] = {30, 125, 250};
  auto busiest = [](const char* row, const Fabric& fabric) {
    return closed(*find_schedule(RC_ALLREDUCE, row), fabric).busiest_us_per_byte;
  };
  double lanes = busiest("direct/ring", one), ring = busiest("ring", one);
  EXPECT_NEAR(lanes, 2.0 * 3 / 4 / 125, 1e-9);
  EXPECT_NEAR(busiest("direct/ring", two), lanes / 2, 1e-9);
  EXPECT_NEAR(busiest("ring", two), ring, 1e-9) << "one of the two ranks sends, the other receives";
}

/// Hosts of two sockets, which are joined by a tenth of what their memory gives.
Fabric sockets(Rank hosts, Rank ranks) {
  Fabric fabric = fabric_of(simulator::cluster_of(hosts * 2 * ranks, ranks, hosts > 1 ? 2 : 0));
  fabric.host_level = 1;
  fabric.links[1] = {1, 1000, 1200};
  return fabric;
}

TEST(Traffic, BetweenSocketsIsOnTheirWaysOut) {
  Fabric fabric = sockets(2, 2);
  ASSERT_EQ(fabric.links.size(), 3u);
  fabric.links[2] = {50, 100, 125};
  auto busiest = [&](std::vector<Message> messages) {
    return profile_of(std::vector<Traffic>{{std::move(messages)}}, fabric).busiest_us_per_byte;
  };
  EXPECT_NEAR(busiest({{0, 1, 1}}), 1.0 / 8000, 1e-12) << "in a socket: as fast as one rank";
  EXPECT_NEAR(busiest({{0, 2, 1}}), 1.0 / 1000, 1e-12);
  EXPECT_NEAR(busiest({{0, 2, 1}, {1, 3, 1}}), 2.0 / 1200, 1e-12);
  EXPECT_NEAR(busiest({{0, 2, 1}, {3, 1, 1}}), 1.0 / 1000, 1e-12) << "one each way";
  EXPECT_NEAR(busiest({{0, 4, 1}, {2, 6, 1}}), 2.0 / 125, 1e-12) << "both by the host's one port";
  // Also on the way to another host: the rate of the sockets' ways out counts.
  fabric.links[2] = {50, 8000, 0};
  EXPECT_NEAR(busiest({{0, 4, 1}, {1, 5, 1}}), 2.0 / 1200, 1e-12);
  EXPECT_DOUBLE_EQ(profile_of(std::vector<Traffic>{{{{0, 2, 1}}}}, fabric).latency_us, 1);
}

// Schedules for several hosts are for the sockets of one, and where there are hosts for these.
TEST(Fabric, OneHostIsAsManyAsItHasSockets) {
  Fabric one = sockets(1, 4), two = sockets(2, 4);
  const ScheduleRow &lanes = *find_schedule(RC_ALLREDUCE, "direct/ring"),
                    &direct = *find_schedule(RC_ALLREDUCE, "direct");
  EXPECT_EQ(one.levels().front(), one.groups[0]);
  EXPECT_EQ(two.levels().front(), two.groups[1]);
  EXPECT_TRUE(is_offered(lanes, one, true));
  EXPECT_TRUE(is_offered(lanes, two, false));
  EXPECT_FALSE(is_offered(lanes, fabric_of(simulator::cluster_of(4, 4, 0)), true));
  auto busiest = [&](const ScheduleRow& row) {
    Problem problem{.size = one.ranks(), .levels = one.levels()};
    return profile_of(traffic_of(row, problem), one).busiest_us_per_byte;
  };
  EXPECT_NEAR(busiest(lanes), 1.0 / 1200, 1e-9) << "the bound, 2n(H-1)/H";
  EXPECT_NEAR(busiest(direct), 2 * 4 * 4.0 / 8 / 1200, 1e-9)
      << "each rank reads all of the other's";
}

// Four ranks with two ports: who shares one is what counts, and not how much the host does.
TEST(Traffic, OfRanksThatShareAPortIsThatOfThePort) {
  Fabric fabric = fabric_of(simulator::cluster_of(8, 4, 0));
  fabric.links[1] = {30, 125, 250};
  auto busiest = [&](std::vector<Rank> ports) {
    fabric.ports = std::move(ports);
    std::vector<Message> messages = {{0, 4, 0.5}, {1, 5, 0.5}};
    return profile_of(std::vector<Traffic>{{messages}}, fabric).busiest_us_per_byte;
  };
  EXPECT_NEAR(busiest({}), 1.0 / 250, 1e-12);
  EXPECT_NEAR(busiest({0, 1, 0, 1, 2, 3, 2, 3}), 0.5 / 125, 1e-12);
  EXPECT_NEAR(busiest({0, 0, 1, 1, 2, 2, 3, 3}), 1.0 / 125, 1e-12);
}

// Hosts with 1, 2 and 4 ranks: the port of each is as busy as that of the others.
TEST(Traffic, OfUnevenHostsIsTheBoundToo) {
  std::vector<Groups> levels = {Groups({0, 1, 3}, 7), Groups({0}, 7)};
  Fabric fabric = fabric_of(levels);
  fabric.links[1].rank_bytes_per_us = 125;
  Profile lanes = walked(*find_schedule(RC_ALLREDUCE, "direct/ring"), fabric);
  EXPECT_NEAR(lanes.busiest_us_per_byte, 2.0 * 2 / 3 / 125, 1e-9);
}

// One host of another size, whose seven ranks send 700 of its 800, does not take the rows over
// hosts away.
TEST(Traffic, OfThousandsOnUnequalHostsIsTold) {
  std::vector<Rank> firsts;
  for (Rank host = 0; host < 512; host++) firsts.push_back(8 * host);
  Fabric fabric = fabric_of({Groups(firsts, 4095), Groups({0}, 4095)});
  fabric.links[1] = {30, 100, 800};
  auto busiest = [&](Collective collective, const char* name) {
    return closed(*find_schedule(collective, name), fabric).busiest_us_per_byte;
  };
  EXPECT_NEAR(busiest(RC_ALLREDUCE, "direct/ring"), 2.0 / 700, 2e-2 * 2 / 700);
  EXPECT_NEAR(busiest(RC_BROADCAST, "direct/chain"), 1.0 / 700, 2e-2 / 700);
  EXPECT_NEAR(busiest(RC_REDUCE, "direct/chain"), 1.0 / 700, 2e-2 / 700);
  EXPECT_NEAR(busiest(RC_ALLGATHER, "direct/ring"), 1.0 / 700, 2e-2 / 700);
  EXPECT_NEAR(busiest(RC_REDUCE_SCATTER, "direct/ring"), 1.0 / 700, 2e-2 / 700);
}

// An alltoall tells how many rounds are alike, and not each.
TEST(Traffic, OfAnAlltoallOfThousandsIsShort) {
  Fabric fabric = fabric_of(simulator::cluster_of(4096, 2, 0));
  Problem problem{.size = 4096, .levels = fabric.groups};
  size_t messages = 0;
  for (const Traffic& rounds : find_schedule(RC_ALLTOALL, "direct/direct")->traffic(problem))
    messages += rounds.messages.size();
  EXPECT_GT(messages, 0u);
  EXPECT_LT(messages, 10u * 4096);
}

// Two racks joined by a slow spine: on the way through the levels each leaf's uplink carries the
// vector once, flat halving with the far partner first would carry it several times.
TEST(Traffic, OfLevelsCrossesTheSpineOnce) {
  Fabric fabric = fabric_of(simulator::cluster_of(16, 2, 4));
  fabric.links[2] = {50, 1000, 12.5};
  Profile lanes = closed(*find_schedule(RC_ALLREDUCE, "direct/ring"), fabric);
  EXPECT_NEAR(lanes.busiest_us_per_byte, 1 / 12.5, 1e-9);  // 2n(2-1)/2
}

// Where ranks share cores, rounds with few messages cost less: one rank of each host crosses.
TEST(Traffic, OfCrowdedHostsCostsByTheirMessages) {
  Fabric fabric = fabric_of(simulator::cluster_of(4, 2, 0));
  auto latency = [&](std::string_view row) {
    return closed_or_walked(*find_schedule(RC_ALLREDUCE, row), fabric).latency_us;
  };
  EXPECT_DOUBLE_EQ(latency("recursive_doubling"), 0.5 + 30);
  EXPECT_DOUBLE_EQ(latency("binomial/recursive_doubling"), 0.5 + 30 + 0.5);
  fabric.crowded = true;
  EXPECT_DOUBLE_EQ(latency("recursive_doubling"), 0.5 + 30);
  EXPECT_DOUBLE_EQ(latency("binomial/recursive_doubling"), (0.5 + 30 + 0.5) / 2);
}

// A message's way round a ring is short where most hops are within hosts; what the cores of a host
// with one rank do in each round is not.
TEST(Traffic, OfARingOverCrowdedHostsIsTheWorkOfTheBusiest) {
  const ScheduleRow& ring = *find_schedule(RC_ALLREDUCE, "ring");
  Fabric equal = fabric_of(simulator::cluster_of(4, 2, 0));
  Fabric unequal = fabric_of({Groups({0, 1, 3}, 7), Groups({0}, 7)});
  EXPECT_DOUBLE_EQ(closed(ring, equal).latency_us, 2 * (2 * 30 + 0.5));
  EXPECT_DOUBLE_EQ(closed(ring, unequal).latency_us, 6 * 30 + 6 * 0.5);
  equal.crowded = unequal.crowded = true;
  EXPECT_DOUBLE_EQ(closed(ring, equal).latency_us, 2 * (2 * 30 + 0.5));
  EXPECT_DOUBLE_EQ(closed(ring, unequal).latency_us, 12 * 30);
}

// The latency of the rounds between hosts, and the bytes that are on the wire in them.
TEST(Traffic, OfCrowdedHostsTellsWireFromMemory) {
  Fabric fabric = fabric_of(simulator::cluster_of(4, 2, 0));
  const ScheduleRow& row = *find_schedule(RC_ALLREDUCE, "binomial/recursive_doubling");
  EXPECT_EQ(closed_or_walked(row, fabric).wire_work_us, 0);
  fabric.crowded = true;
  Profile crowded = closed_or_walked(row, fabric);
  EXPECT_DOUBLE_EQ(crowded.wire_work_us, 30.0 / 2);
  EXPECT_DOUBLE_EQ(crowded.wire_us_per_byte, 1 / 100.0);
  EXPECT_LT(crowded.wire_us_per_byte, crowded.us_per_byte);
}

// In one domain what is sent goes as soon as it is there: a rank waits once for several peers.
TEST(Traffic, OfOneDomainIsThatOfWhatGoesEarly) {
  Fabric fabric = fabric_of({Groups({0}, 4)});
  auto latency = [&](Collective collective, std::string_view row) {
    return walked(*find_schedule(collective, row), fabric, true).latency_us;
  };
  EXPECT_DOUBLE_EQ(latency(RC_ALLREDUCE, "recursive_doubling"), 2 * 0.5);
  EXPECT_DOUBLE_EQ(latency(RC_ALLREDUCE, "one_shot"), 0.5 + 2 * 0.25);
  EXPECT_DOUBLE_EQ(latency(RC_REDUCE_SCATTER, "direct"), 0.5 + 2 * 0.25);
  EXPECT_DOUBLE_EQ(latency(RC_ALLREDUCE, "direct"), 2 * (0.5 + 2 * 0.25));
  EXPECT_DOUBLE_EQ(latency(RC_ALLGATHER, "ring"), 3 * 0.5);
  fabric.crowded = true;
  EXPECT_DOUBLE_EQ(latency(RC_ALLREDUCE, "recursive_doubling"), 2 * 0.5);
  EXPECT_DOUBLE_EQ(latency(RC_ALLREDUCE, "one_shot"), 0.5 + 2 * 0.05);
  EXPECT_DOUBLE_EQ(latency(RC_ALLREDUCE, "direct"), 2 * (0.5 + 2 * 0.05));
  Profile profile = walked(*find_schedule(RC_ALLREDUCE, "one_shot"), fabric, true);
  EXPECT_DOUBLE_EQ(profile.us_per_byte, 12 / 12000.0);  // what the memory of the host moves
}

TEST(Microseconds, OfOnePieceAreItsRounds) {
  Profile profile = {.latency_us = 10, .us_per_byte = 0.5, .busiest_us_per_byte = 0.25};
  EXPECT_DOUBLE_EQ(microseconds(profile, 100, 1, 4), 60);
}

TEST(Microseconds, OfManyPiecesAreThoseOfTheBusiestResource) {
  Profile profile = {.latency_us = 0, .us_per_byte = 0.5, .busiest_us_per_byte = 0.25};
  // With many slots a piece follows the one before as soon as the busiest resource has done it.
  EXPECT_NEAR(microseconds(profile, 100, 10, 1000), 5 + 9 * 2.5, 0.1);
  EXPECT_GT(microseconds(profile, 100, 10, 4), 5 + 9 * 2.5);
  // With one slot nothing overlaps.
  EXPECT_DOUBLE_EQ(microseconds(profile, 100, 10, 1), 50);
}

// What cores are busy with, no number of slots hides.
TEST(Microseconds, OfCrowdedHostsAreTheWorkOfTheirCores) {
  Profile profile = {.latency_us = 10, .us_per_byte = 0.01, .work_us = 10};
  EXPECT_GE(microseconds(profile, 100, 10, 1000), 10 * 10);
}

// While bytes of one rank are on the wire, the cores that it shares work for the others.
TEST(Microseconds, OfCrowdedHostsAreTheirCoresOrTheWire) {
  Profile profile = {.latency_us = 12,
                     .us_per_byte = 0.6,
                     .work_us = 12,
                     .wire_work_us = 10,
                     .wire_us_per_byte = 0.5};
  EXPECT_DOUBLE_EQ(microseconds(profile, 10, 1, 4), 12 + 1);
  EXPECT_DOUBLE_EQ(microseconds(profile, 100, 1, 4), 2 + 60);
}

TEST(IsOffered, FollowsTheClusterAndTheDomain) {
  const ScheduleRow& direct = *find_schedule(RC_ALLREDUCE, "direct");
  const ScheduleRow& lanes = *find_schedule(RC_ALLREDUCE, "direct/ring");
  Fabric one_host = fabric_of({Groups({0}, 4)}), two = fabric_of(simulator::cluster_of(4, 2, 0)),
         singles = fabric_of(simulator::cluster_of(4, 1, 0));
  EXPECT_TRUE(is_offered(direct, one_host, true));
  EXPECT_FALSE(is_offered(direct, two, false));
  EXPECT_FALSE(is_offered(lanes, one_host, true));
  EXPECT_TRUE(is_offered(lanes, two, false));
  EXPECT_FALSE(is_offered(lanes, singles, false));
}

}  // namespace
}  // namespace ringcoll
