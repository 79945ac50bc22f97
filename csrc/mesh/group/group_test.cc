// Groups of a mesh whose ranks are threads of one process, over every transport that joins those.
#include "mesh/group/group.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mesh/group/messages_testing.h"
#include "mesh/ranks_testing.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using testing::Used;
using Meeting = testing::Offers;

void send(Group& group, Rank to, uint64_t word) {
  Endpoint& channel = group.channels()[to];
  testing::send(channel, testing::envelope_of(static_cast<int64_t>(word)), nullptr, 0);
}
uint64_t receive(Group& group, Rank from) {
  Endpoint& channel = group.channels()[from];
  if (group.wants_places()) channel.expect(nullptr, 0);
  View view;
  group.channels().wait(
      from, [&] { return channel.try_recv(nullptr, 0, &view); }, [] { return "a test"; });
  channel.release();
  return view.envelope.words[0];
}
/// Every rank tells every other of the group a word, and hears theirs.
void talk(Group& group, uint64_t word) {
  std::vector<Rank> others;
  for (Rank rank = 0; rank < group.size(); rank++)
    if (rank != group.rank()) others.push_back(rank);
  group.channels().connect(others);
  for (Rank rank : others) send(group, rank, word);
  for (Rank rank : others) EXPECT_EQ(receive(group, rank), word);
  group.channels().flush([] { return "a test"; });
}

class Groups : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr Rank kRanks = 4;
  void run(const std::function<void(Mesh&, Meeting&)>& body) {
    Meeting meeting(kRanks);
    auto errors = testing::run_ranks({kRanks, testing::config_of(GetParam())},
                                     [&](Mesh& mesh) { body(mesh, meeting); });
    EXPECT_EQ(errors, std::vector<std::string>(kRanks));
  }
  /// In the order that reverses the mesh's.
  static std::vector<Rank> half_of(Rank rank) {
    return rank % 2 ? std::vector<Rank>{3, 1} : std::vector<Rank>{2, 0};
  }
};
INSTANTIATE_TEST_SUITE_P(, Groups, ::testing::Values("loopback", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

// Its caller may write there once he has the error, whatever the peer does then.
TEST(GroupOfSharedMemory, WhatItHasLentIsNotReadOnceItHasFailed) {
  constexpr size_t kBytes = 100'000;
  std::vector<std::byte> lent(kBytes, std::byte{1}), place(kBytes);
  std::promise<void> failed, tried;
  testing::run_ranks({2, testing::config_of("shm")}, [&](Mesh& mesh) {
    const Rank peer = 1 - mesh.rank();
    Group& group = mesh.whole();
    group.channels().connect({&peer, 1});
    Endpoint& channel = group.channels()[peer];
    if (mesh.rank() == 0) {
      ASSERT_TRUE(host_link(channel)->takes_lent());
      ASSERT_NE(channel.try_send({}, lent.data(), kBytes), 0u);
      group.fail(Error(Code::kTimeout, "the call took too long", 1));
      std::ranges::fill(lent, std::byte{2});
      failed.set_value();
      // What tells that it is revoked goes with this rank.
      ASSERT_EQ(tried.get_future().wait_for(seconds(20)), std::future_status::ready);
      return;
    }
    ASSERT_EQ(failed.get_future().wait_for(seconds(20)), std::future_status::ready);
    View view;
    try {
      channel.try_recv(place.data(), kBytes, &view);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kPeerLost) << error.what();
    }
    tried.set_value();
  });
}

TEST_P(Groups, HaveRanksPlacesAndCostsOfTheirOwn) {
  run([](Mesh& mesh, Meeting& meeting) {
    auto half = meeting.make(mesh, half_of(mesh.rank()));
    EXPECT_EQ(half->size(), 2);
    EXPECT_EQ(half->members()[half->rank()], mesh.rank());
    EXPECT_EQ(half->topology().at(half->rank()).pid, mesh.topology().at(mesh.rank()).pid);
    EXPECT_EQ(half->costs().levels.size(), static_cast<size_t>(half->topology().levels()));
    EXPECT_EQ(half->costs().levels[0].latency_us, mesh.costs().levels[0].latency_us);
    EXPECT_EQ(half->one_domain(), mesh.whole().one_domain());
    EXPECT_EQ(half->transport_of(1 - half->rank()), GetParam());
    EXPECT_EQ(half->memory().bytes(), mesh.whole().memory().bytes());
    EXPECT_NE(half->memory().own().data(), mesh.whole().memory().own().data());
    meeting.wait();
  });
}

TEST_P(Groups, CarryWhatIsTheirs) {
  run([](Mesh& mesh, Meeting& meeting) {
    auto half = meeting.make(mesh, half_of(mesh.rank()));
    auto all = meeting.make(mesh, {1, 3, 0, 2});
    for (uint64_t round = 1; round < 100; round++) {
      talk(*half, round * 10 + mesh.rank() % 2);
      talk(mesh.whole(), round * 1000);
      talk(*all, round * 100);
    }
    meeting.wait();
  });
}

TEST_P(Groups, WorkAtOnceInSeveralThreads) {
  run([](Mesh& mesh, Meeting& meeting) {
    auto half = meeting.make(mesh, half_of(mesh.rank()));
    auto all = meeting.make(mesh, {1, 3, 0, 2});
    std::vector<std::thread> threads;
    for (Group* group : {half.get(), all.get(), &mesh.whole()})
      threads.emplace_back([group, which = threads.size()] {
        for (uint64_t round = 1; round < 200; round++) talk(*group, round * 10 + which);
      });
    for (std::thread& thread : threads) thread.join();
    meeting.wait();
  });
}

TEST_P(Groups, FailAlone) {
  run([](Mesh& mesh, Meeting& meeting) {
    auto half = meeting.make(mesh, half_of(mesh.rank()));
    auto all = meeting.make(mesh, {0, 1, 2, 3});
    talk(*half, 1);
    if (mesh.rank() == 3) half->health().poison(Error(Code::kAborted, "enough", 0));
    if (mesh.rank() == 1) {
      EXPECT_THROW(receive(*half, 0), Error);
      EXPECT_EQ(half->health().error().code(), Code::kAborted);
      EXPECT_EQ(half->health().error().rank(), 0);
    }
    meeting.wait();
    EXPECT_EQ(half->health().poisoned(), mesh.rank() % 2 == 1);
    talk(*all, 2);
    talk(mesh.whole(), 3);
    meeting.wait();
  });
}

// Its peer, which waits for it, raises that.
TEST_P(Groups, AreLeft) {
  run([](Mesh& mesh, Meeting& meeting) {
    auto half = meeting.make(mesh, half_of(mesh.rank()));
    talk(*half, 1);
    if (mesh.rank() < 2) {
      try {
        receive(*half, 0);
        ADD_FAILURE() << "who has left sends nothing";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kPeerLost);
        EXPECT_EQ(error.rank(), 0);
      }
    } else {
      half.reset();
    }
    meeting.wait();
    talk(mesh.whole(), 2);
    meeting.wait();
  });
}

// Whom an error blames is said in the group's numbers, be it the lifeline or the channel that
// cannot be made.
TEST_P(Groups, BlameTheirOwnRanks) {
  for (bool has_lifelines : {false, true})
    run([has_lifelines](Mesh& mesh, Meeting& meeting) {
      if (has_lifelines) talk(mesh.whole(), 1);
      auto half = meeting.make(mesh, half_of(mesh.rank()));
      // The lowest rank, whose number it is, is 0 or 1 here, and 1 in the group.
      if (mesh.rank() < 2) mesh.connector().interrupt(half->offer().number);
      meeting.wait();
      constexpr Rank kPeer = 0;
      if (mesh.rank() < 2) {
        bool dials = !has_lifelines || GetParam() == "tcp";
        try {
          half->channels().connect({&kPeer, 1});
          EXPECT_FALSE(dials);
        } catch (const Error& error) {
          EXPECT_TRUE(dials);
          EXPECT_EQ(error.rank(), kPeer) << error.what();
        }
      }
      meeting.wait();
    });
}

TEST_P(Groups, AreMadeAgainAndAgain) {
  run([](Mesh& mesh, Meeting& meeting) {
    for (size_t i = 0; i < 128; i++) {
      auto half = meeting.make(mesh, half_of(mesh.rank()));
      talk(*half, i);
    }
    meeting.wait();
  });
}

TEST_P(Groups, AreThousandsAtATime) {
  run([](Mesh& mesh, Meeting& meeting) {
    std::vector<std::unique_ptr<Group>> groups;
    for (size_t i = 0; i < 2000; i++) groups.push_back(meeting.make(mesh, half_of(mesh.rank())));
    for (size_t i = 0; i < groups.size(); i += 97) talk(*groups[i], i);
    meeting.wait();
  });
}

// What is not to be had is an error of this one, and the others go on.
TEST_P(Groups, AreNoMoreThanThereIsRoomFor) {
  run([](Mesh& mesh, Meeting& meeting) {
    auto before = meeting.make(mesh, half_of(mesh.rank()));
    std::vector<std::span<std::byte>> taken;
    std::string why;
    try {
      while (true) taken.push_back(mesh.short_extents().take(&taken));
    } catch (const Error& error) {
      why = error.what();
    }
    EXPECT_NE(why.find("no more shared memory for one more group"), std::string::npos) << why;
    EXPECT_GE(taken.size(), 8000u);
    std::shared_ptr<Mesh> shared(&mesh, [](Mesh*) {});
    EXPECT_THROW(Group(shared, half_of(mesh.rank())), Error);
    meeting.wait();
    for (auto extent : taken) mesh.short_extents().give_back(extent, {});
    auto after = meeting.make(mesh, half_of(mesh.rank()));
    for (auto* group : {before.get(), after.get()}) talk(*group, 7);
    meeting.wait();
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which take terabytes
// All ranks cut what they have of the arena alike, whoever has fewer addresses, or may write less
// to a file.
void expect_extent_under(__rlimit_resource_t resource, rlim_t bytes, size_t extent) {
  auto in_child = [=] {
    rlimit limit{};
    ::getrlimit(resource, &limit);
    limit.rlim_cur = bytes;
    ::setrlimit(resource, &limit);
    Config config = testing::config_of("shm");
    config.arena_bytes = 64 << 20;
    Meeting meeting(2);
    auto errors = testing::run_ranks({2, config}, [&](Mesh& mesh) {
      auto group = meeting.make(mesh, {1, 0});
      EXPECT_EQ(group->memory().bytes(), extent);
      talk(*group, 1);
      meeting.wait();
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(in_child(), ::testing::ExitedWithCode(0), "");
}
TEST(GroupsWithFewAddresses, HaveLessOfTheArena) {
  expect_extent_under(RLIMIT_AS, rlim_t{4} << 30, 4 << 20);
}
TEST(GroupsWithShortFiles, HaveLessOfTheArena) {
  expect_extent_under(RLIMIT_FSIZE, rlim_t{2} << 30, 8 << 20);
}
#endif

TEST_P(Groups, NeedNoThreadAndHardlyADescriptor) {
  run([](Mesh& mesh, Meeting& meeting) {
    testing::wake_all(mesh.whole(), meeting);  // so that there are all lifelines, and what wakes
    Used before = Used::count(mesh, meeting);
    auto half = meeting.make(mesh, half_of(mesh.rank()));
    Used made = Used::count(mesh, meeting);
    EXPECT_EQ(made.threads, before.threads);
    EXPECT_EQ(made.descriptors, before.descriptors);
    talk(*half, 2);
    Used used = Used::count(mesh, meeting);
    EXPECT_EQ(used.threads, before.threads);
    // Over tcp as many as in the group of all ranks, for each pair that has talked, both ends of
    // which are here.
    size_t streams = mesh.link(3 - mesh.rank()).transport->sockets_to(3 - mesh.rank());
    EXPECT_EQ(streams, GetParam() == "tcp" ? 4u : 0u);
    size_t more = mesh.rank() == 0 ? kRanks * streams : 0;
    EXPECT_EQ(used.descriptors, before.descriptors + more);
    half.reset();
    EXPECT_EQ(Used::count(mesh, meeting).descriptors, before.descriptors);
  });
}

}  // namespace
}  // namespace ringcoll
