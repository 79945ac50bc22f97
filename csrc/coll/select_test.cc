// The choice of schedules: the cheapest by the fabric, in pieces and slots that follow from it.
#include "coll/select.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "coll/terrain.h"

namespace ringcoll {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kArenaBytes = 64 * kMiB;

/// `hosts` hosts of `ranks` ranks on links of `gbit` Gb/s.
Terrain cluster(Rank hosts, Rank ranks, double gbit) {
  Terrain terrain;
  std::vector<Rank> firsts;
  for (Rank h = 0; h < hosts; h++) firsts.push_back(h * ranks);
  terrain.fabric.combined_bytes_per_us = 10000;
  terrain.fabric.groups.emplace_back(firsts, hosts * ranks);
  terrain.fabric.links.push_back({0.5, 8000, 16000});
  if (hosts > 1) {
    terrain.fabric.groups.emplace_back(std::vector<Rank>{0}, hosts * ranks);
    terrain.fabric.links.push_back({30, 125 * gbit, 125 * gbit});
  }
  terrain.one_domain = hosts == 1;
  terrain.slots = 4;
  terrain.arena_bytes = kArenaBytes;
  return terrain;
}

/// A call of one vector, or of chunks of `bytes`, of bytes.
Choice choose(const Terrain& terrain, Collective collective, int64_t bytes) {
  Call call;
  call.collective = collective;
  call.dtype = RC_UINT8;
  size_t strips = call.is_vector() ? 1 : static_cast<size_t>(terrain.fabric.ranks());
  return Selector(terrain).choose(call, bytes, strips);
}

TEST(Select, TakesTheCheapestRowThatIsOffered) {
  for (const Terrain& terrain :
       {cluster(1, 4, 1), cluster(2, 2, 1), cluster(4, 1, 10), cluster(3, 2, 10), cluster(5, 4, 1)})
    for (int64_t bytes = 4; bytes <= 256 * kMiB; bytes *= 4) {
      Selector selector(terrain);
      const ScheduleRow* best = nullptr;
      double least = std::numeric_limits<double>::infinity();
      for (const ScheduleRow& row : schedules()) {
        if (row.collective != RC_ALLREDUCE) continue;
        auto price = selector.estimate(row, static_cast<double>(bytes));
        EXPECT_EQ(price.has_value(), is_offered(row, terrain.fabric, terrain.one_domain));
        if (price && price->microseconds < least) least = price->microseconds, best = &row;
      }
      EXPECT_EQ(choose(terrain, RC_ALLREDUCE, bytes).row, best) << bytes;
    }
}

// One step instead of two is worth the more, the longer a message takes.
TEST(Select, TwoRanksOfAHostExchangeTheWholeVectorWhileItIsSmall) {
  Terrain terrain = cluster(1, 2, 1);
  terrain.fabric.combined_bytes_per_us = kCombinedInMemoryBytesPerUs;
  auto most_in_one_step = [&](double latency_us) {
    terrain.fabric.links[0].latency_us = latency_us;
    int64_t most = 0;
    for (int64_t bytes = 1024; bytes <= kMiB; bytes *= 2)
      if (choose(terrain, RC_ALLREDUCE, bytes).row->name == "recursive_doubling") most = bytes;
    return most;
  };
  EXPECT_EQ(most_in_one_step(0.1), 32 << 10);
  EXPECT_EQ(most_in_one_step(0.4), 128 << 10);
}

// Ranks that share cores wait for one another by a change of context, once or in every round.
TEST(Select, RanksThatShareCoresExchangeSmallVectorsInOneShot) {
  Terrain terrain = cluster(1, 4, 1);
  EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64).row->name, "recursive_doubling");
  terrain.fabric.crowded = true;
  terrain.fabric.links[0].latency_us = 2;
  EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64).row->name, "one_shot");
  EXPECT_NE(choose(terrain, RC_ALLREDUCE, 64 << 10).row->name, "one_shot");
  Terrain two = cluster(1, 2, 1);
  EXPECT_EQ(choose(two, RC_ALLREDUCE, 64).row->name, "recursive_doubling");
}

// There a row is worth what it waits for, and not how many rounds it has: of as many bytes, twice.
TEST(Select, RanksThatShareCoresGoByWhatGoesEarly) {
  Terrain terrain = cluster(1, 4, 1);
  EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64 << 10).row->name, "halving_doubling");
  terrain.fabric.crowded = true;
  EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64 << 10).row->name, "direct");
}

// What is combined stays in the caches. Where ranks share cores a rank's part is large against its
// change of context.
TEST(Select, PiecesOfAHostFitIntoCaches) {
  for (bool share : {false, true})
    for (Rank ranks : {2, 4, 8}) {
      Terrain terrain = cluster(1, ranks, 1);
      terrain.one_domain = true;
      terrain.fabric.crowded = share;
      int64_t combined = share && ranks == 8 ? kMiB / 2 : kMiB / 4;
      EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64 * kMiB).stretch, combined);
      int64_t copied = share && ranks == 8 ? kMiB : kMiB / 2;
      EXPECT_EQ(choose(terrain, RC_BROADCAST, 64 * kMiB).stretch, copied);
    }
}

// Four waits a piece instead of two, and as many bytes, are never worth it, however long a wait is.
TEST(Select, RanksThatShareCoresCountEachWaitOfEachPiece) {
  Terrain terrain = cluster(1, 8, 1);
  terrain.one_domain = terrain.fabric.crowded = true;
  for (double latency_us : {0.5, 5.0, 10.0, 50.0}) {
    terrain.fabric.links[0].latency_us = latency_us;
    EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 4 * kMiB).row->name, "direct") << latency_us;
  }
}

// The largest that was found faster is that of a cache of 2 MiB.
TEST(Select, PiecesOfWhatIsCombinedFollowTheCachesOfCores) {
  Terrain terrain = cluster(1, 4, 1);
  terrain.one_domain = true;
  for (auto [cache, piece] : std::map<int64_t, int64_t>{{0, kMiB / 4},
                                                        {kMiB / 2, kMiB / 4},
                                                        {kMiB, kMiB / 2},
                                                        {2 * kMiB, kMiB},
                                                        {16 * kMiB, kMiB}}) {
    terrain.core_cache_bytes = cache;
    EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64 * kMiB).stretch, piece) << cache;
    EXPECT_EQ(choose(terrain, RC_BROADCAST, 64 * kMiB).stretch, kMiB / 2);
  }
  terrain.fabric.crowded = true;
  EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64 * kMiB).stretch, kMiB / 4);
}

// Two ranks with a core each hand over all that they exchange, by whatever schedule; a root only
// sends.
TEST(Select, PiecesOfTwoRanksAreMessagesThatAreHandedOver) {
  Terrain terrain = cluster(1, 2, 1);
  terrain.one_domain = true;
  terrain.core_cache_bytes = 2 * kMiB;
  terrain.copied_bytes = kMiB / 8;
  for (auto [name, piece] : std::map<std::string, int64_t>{
           {"direct", kMiB / 4}, {"ring", kMiB / 4}, {"recursive_doubling", kMiB / 8}}) {
    terrain.algorithm = "allreduce=" + name;
    EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64 * kMiB).stretch, piece) << name;
  }
  EXPECT_EQ(choose(terrain, RC_BROADCAST, 64 * kMiB).stretch, kMiB / 2);
  EXPECT_EQ(choose(terrain, RC_ALLGATHER, kMiB).stretch, kMiB / 8);
  terrain.copied_bytes = 0;
  EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64 * kMiB).stretch, kMiB);
  terrain.copied_bytes = kMiB / 8;
  terrain.fabric.crowded = true;
  EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64 * kMiB).stretch, kMiB / 4);
}

// A ring or a halving that takes every pair for a wire of its own sends each host's bytes through
// its one port several times. What is chosen sends them once: 2n(H-1)/H.
TEST(Select, LargeVectorsGoOverEachPortOnce) {
  for (auto [hosts, ranks] : {std::pair<Rank, Rank>{2, 2}, {2, 4}, {4, 2}, {3, 2}, {5, 4}, {3, 5}})
    for (double gbit : {1, 10}) {
      Terrain terrain = cluster(hosts, ranks, gbit);
      Choice choice = choose(terrain, RC_ALLREDUCE, 64 * kMiB);
      Problem problem{.size = hosts * ranks, .levels = terrain.fabric.groups};
      Profile profile = profile_of(traffic_of(*choice.row, problem), terrain.fabric);
      double bound = 2.0 * (hosts - 1) / hosts / (125 * gbit);
      EXPECT_NEAR(profile.busiest_us_per_byte, bound, 1e-6 * bound) << choice.row->name;
    }
}

// Two sockets of four ranks: what joins them is crossed once, if it is slower than they are.
TEST(Select, LargeVectorsCrossBetweenSocketsOnceWhereThatIsSlower) {
  Terrain terrain = cluster(2, 4, 1);
  terrain.one_domain = true;
  terrain.fabric.host_level = 1;
  auto row = [&](int64_t bytes, double rank, double group) {
    terrain.fabric.links[1] = {0.5, rank, group};
    return choose(terrain, RC_ALLREDUCE, bytes).row;
  };
  auto crossing = [&](const ScheduleRow& row) {  // from one socket to the other
    double share = 0;
    Problem problem{.size = 8, .levels = terrain.fabric.levels()};
    for (const Traffic& round : traffic_of(row, problem))
      for (const Message& message : round.messages)
        if (message.from < 4 && message.to >= 4)
          share += message.share * static_cast<double>(round.times);
    return share;
  };
  EXPECT_NEAR(crossing(*row(64 * kMiB, 4000, 8000)), 1, 1e-6) << "the bound, 2n(H-1)/H";
  const ScheduleRow& fast = *row(64 * kMiB, 8000, 32000);
  EXPECT_EQ(fast.name, "direct");
  EXPECT_NEAR(crossing(fast), 4, 1e-6);
  EXPECT_EQ(row(64, 4000, 8000)->name, "recursive_doubling");
}

// The latency of the network is paid as seldom as that of a doubling of hosts.
TEST(Select, SmallVectorsCrossBetweenHostsAsFewTimesAsCanBe) {
  for (auto [hosts, ranks] : {std::pair<Rank, Rank>{2, 2}, {2, 4}, {4, 4}, {2, 3}, {4, 5}, {8, 3}})
    for (Collective collective :
         {RC_ALLREDUCE, RC_ALLGATHER, RC_REDUCE_SCATTER, RC_BROADCAST, RC_REDUCE, RC_BARRIER}) {
      Terrain terrain = cluster(hosts, ranks, 1);
      Choice choice = choose(terrain, collective, collective == RC_BARRIER ? 0 : 1);
      EXPECT_EQ(choice.pieces, 1);
      Problem problem{.size = hosts * ranks, .levels = terrain.fabric.groups};
      int crossings = 0;
      for (const Traffic& round : traffic_of(*choice.row, problem))
        crossings += std::ranges::any_of(round.messages, [&](const Message& m) {
          return terrain.fabric.level_between(m.from, m.to) == 1;
        });
      EXPECT_EQ(crossings, std::countr_zero(static_cast<unsigned>(hosts)))
          << name_of(collective) << " " << choice.row->name << ", " << hosts << " x " << ranks;
    }
}

TEST(Select, LongBroadcastsAndReducesAreChains) {
  for (Collective collective : {RC_BROADCAST, RC_REDUCE}) {
    EXPECT_EQ(choose(cluster(4, 1, 1), collective, 64 * kMiB).row->name, "chain");
    std::string_view name = choose(cluster(4, 4, 1), collective, 64 * kMiB).row->name;
    EXPECT_TRUE(name.ends_with("chain")) << name;
  }
}

// A link to each of many ranks is what a root has to open, and to wait for, before it has anything.
TEST(Select, SmallChunksGoOverATree) {
  for (Rank ranks : {8, 64, 1000})
    for (Collective collective : {RC_GATHER, RC_SCATTER})
      for (bool equal : {true, false}) {
        std::vector<int64_t> counts(ranks, 4);
        Call call;
        call.collective = collective;
        call.dtype = RC_UINT8;
        if (!equal) call.counts = counts;
        for (const Terrain& terrain : {cluster(ranks, 1, 10), cluster(1, ranks, 0)})
          EXPECT_EQ(Selector(terrain).choose(call, 4, counts.size()).row->name, "binomial")
              << ranks << " ranks on " << terrain.fabric.levels().size() << " levels";
      }
}

// Of P - R ranks on other hosts a rank sends to H - 1, where that is what matters and where it
// knows what the others of its host have for them.
TEST(Select, SmallAlltoallsAreCollectedInEachHost) {
  Terrain terrain = cluster(4, 4, 1);
  auto chosen = [&](int64_t each, bool equal) {
    std::vector<int64_t> counts(16, each);
    Call call;
    call.collective = RC_ALLTOALL;
    call.dtype = RC_UINT8;
    if (!equal) call.counts = call.recv_counts = counts;
    return Selector(terrain).choose(call, each, 32).row->name;
  };
  EXPECT_EQ(chosen(4, true), "direct/direct");
  EXPECT_EQ(chosen(4, false), "direct");
  terrain.algorithm = "alltoall=direct/direct";
  EXPECT_EQ(chosen(4, false), "direct") << "named, but not to be had";
  terrain.algorithm = "alltoall=direct";
  EXPECT_EQ(chosen(4, true), "direct");
}

TEST(Select, NamedRowsAreTaken) {
  Terrain terrain = cluster(2, 2, 1);
  terrain.algorithm = "allreduce=ring,broadcast=binomial";
  EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 64 * kMiB).row->name, "ring");
  EXPECT_EQ(choose(terrain, RC_BROADCAST, 64 * kMiB).row->name, "binomial");
  terrain.algorithm = "direct/ring";
  EXPECT_EQ(choose(terrain, RC_ALLREDUCE, 4).row->name, "direct/ring");
  EXPECT_EQ(choose(terrain, RC_ALLGATHER, 4).row->name, "direct/ring");
}

TEST(Select, LongScansAreChainsAndShortOnesAreNot) {
  for (Collective collective : {RC_SCAN, RC_EXSCAN}) {
    EXPECT_EQ(choose(cluster(8, 1, 10), collective, 64 * kMiB).row->name, "chain");
    EXPECT_EQ(choose(cluster(8, 1, 10), collective, 4).row->name, "recursive_doubling");
  }
}

// What a chain costs goes by where its ranks are. Ranks that alternate between two hosts cross at
// every hop.
TEST(Select, ScansArePricedInTheOrderOfRanks) {
  Terrain terrain = cluster(2, 4, 1);
  const ScheduleRow& chain = *find_schedule(RC_SCAN, "chain");
  double in_order = Selector(terrain).estimate(chain, 4)->microseconds;
  terrain.positions = {0, 4, 1, 5, 2, 6, 3, 7};
  EXPECT_NEAR(Selector(terrain).estimate(chain, 4)->microseconds, in_order + 6 * 29.5, 1);
}

TEST(Select, TakesRowsThatAreForOneNameOnlyByThatName) {
  for (const ScheduleRow& row : schedules()) {
    if (!row.by_name_only) continue;
    Terrain terrain = cluster(2, 2, 1);
    for (int64_t bytes = 4; bytes <= 256 * kMiB; bytes *= 16)
      EXPECT_NE(choose(terrain, row.collective, bytes).row->name, row.name) << bytes;
    terrain.algorithm = row.name;
    EXPECT_EQ(choose(terrain, row.collective, 4).row->name, row.name);
  }
}

TEST(Select, RowsOfSeveralPartsCanBeNamed) {
  check_algorithm("allreduce=direct/ring,broadcast=binomial/binomial");
  EXPECT_THROW(check_algorithm("allreduce=direct/none"), Error);
  EXPECT_THROW(check_algorithm("broadcast=direct/ring"), Error);
}

// Pieces cover the vector, none is longer than the arena allows, and a fast network with much
// latency has more of them in flight.
TEST(Select, PiecesFollowFromTheLinks) {
  for (double gbit : {1, 10, 400}) {
    Terrain terrain = cluster(4, 1, gbit);
    for (int64_t bytes : {int64_t{1}, 100 * kMiB / 3, 256 * kMiB}) {
      Choice choice = choose(terrain, RC_ALLREDUCE, bytes);
      EXPECT_GE(choice.stretch * choice.pieces, bytes);
      EXPECT_LT(choice.stretch * (choice.pieces - 1), bytes);
      EXPECT_LE(choice.stretch, Selector(terrain).bank_bytes());
    }
  }
  Terrain fixed = cluster(4, 1, 1);
  fixed.segment_bytes = 64 << 10;
  EXPECT_EQ(choose(fixed, RC_ALLREDUCE, kMiB).stretch, 64 << 10);
  EXPECT_EQ(choose(fixed, RC_ALLGATHER, kMiB).stretch, 16 << 10) << "a piece of all chunks";
  Call alltoall;
  alltoall.collective = RC_ALLTOALL;
  alltoall.dtype = RC_UINT8;
  EXPECT_EQ(Selector(fixed).choose(alltoall, kMiB, 8).stretch, 16 << 10) << "as much comes in";
}

TEST(Select, SlotsFollowFromTheLinks) {
  auto best = [](Terrain terrain) {
    terrain.slots = 0;
    return Selector(terrain).slots();
  };
  EXPECT_EQ(best(cluster(1, 4, 0)), 4);
  EXPECT_GT(best(cluster(4, 2, 1)), 4);
  Terrain far = cluster(4, 1, 100);  // fast, and far away
  far.fabric.links[1].latency_us = 3000;
  EXPECT_GT(best(far), 4);
  Terrain small = far;
  small.arena_bytes = 2 * kMiB;  // has room for few
  EXPECT_EQ(best(small), 4);
}

// They are those of the row that is named, though another would be cheaper.
TEST(Select, SlotsAreThoseOfTheRowThatIsNamed) {
  Terrain terrain = cluster(16, 1, 100);
  terrain.slots = 0;
  terrain.fabric.links[1].latency_us = 100;
  std::set<int64_t> found;
  for (const char* name : {"", "ring", "recursive_doubling"}) {
    terrain.algorithm = name;
    int64_t expected = 0;
    double least = std::numeric_limits<double>::infinity();
    for (int64_t slots : {4, 8, 16}) {
      Terrain fixed = terrain;
      fixed.slots = slots;
      Selector selector(fixed);
      Call call;
      call.collective = RC_ALLREDUCE;
      call.dtype = RC_UINT8;
      const ScheduleRow* row = selector.choose(call, 64 * kMiB, 1).row;
      double price = selector.estimate(*row, 64 * kMiB)->microseconds;
      if (price < least * 0.98) least = price, expected = slots;
    }
    Selector chosen(terrain);
    EXPECT_EQ(chosen.slots(), expected) << name;
    found.insert(chosen.slots());
  }
  EXPECT_GT(found.size(), 1u) << "or the name does not matter";
}

// Memory that has not even room for an element of each rank is refused before any call is made.
TEST(Select, AnElementOfEachRankFitsIntoABank) {
  Terrain terrain = cluster(171, 3, 10);
  terrain.arena_bytes = kMiB;
  terrain.slots = 64;
  try {
    Selector selector(terrain);
    FAIL() << "2 * 513 * 8 bytes do not fit into 8192";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    for (const char* part : {"513 ranks", "RINGCOLL_ARENA_BYTES=1048576", "RINGCOLL_SLOTS=64"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  terrain = cluster(256, 2, 10);
  terrain.arena_bytes = kMiB;
  terrain.slots = 64;
  Selector selector(terrain);
  EXPECT_EQ(selector.bank_bytes(), 8192);
  Call call;
  call.collective = RC_ALLTOALL;
  call.dtype = RC_FLOAT64;
  EXPECT_EQ(selector.choose(call, 100, 2 * 512).stretch, 1);
}

// Collectives of which there is one row need no price, however many ranks there are.
TEST(Select, ThousandsOfRanksAreServed) {
  Terrain terrain = cluster(512, 8, 100);
  for (Collective collective : {RC_ALLREDUCE, RC_ALLGATHER, RC_REDUCE_SCATTER, RC_BROADCAST,
                                RC_REDUCE, RC_GATHER, RC_SCATTER, RC_ALLTOALL, RC_BARRIER})
    EXPECT_NE(choose(terrain, collective, 1024).row, nullptr) << name_of(collective);
}

// A choice is that of all ranks, whatever they chose before.
TEST(Select, DoesNotDependOnEarlierCalls) {
  Selector selector(cluster(3, 2, 10));
  Call call;
  call.collective = RC_ALLREDUCE;
  call.dtype = RC_FLOAT32;
  for (int64_t count : {1, 1 << 20, 1 << 24, 1, 1 << 12, 1 << 24}) {
    Choice warm = selector.choose(call, count, 1);
    Choice cold = Selector(cluster(3, 2, 10)).choose(call, count, 1);
    EXPECT_EQ(warm.row, cold.row);
    EXPECT_EQ(warm.stretch, cold.stretch);
    EXPECT_EQ(warm.pieces, cold.pieces);
  }
}

}  // namespace
}  // namespace ringcoll
