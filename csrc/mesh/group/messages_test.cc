// Channels for messages of groups whose ranks are threads of one process, over every transport that
// joins those, and over two at once.
#include "mesh/group/messages.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "mesh/group/group.h"
#include "mesh/group/messages_testing.h"
#include "mesh/ranks_testing.h"
#include "transport/verbs/device_testing.h"

namespace ringcoll {
namespace {

using namespace testing;
using std::chrono::milliseconds;

class MessagesTest : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr Rank kRanks = 4;
  void SetUp() override {
    if (GetParam() == "verbs" && !rdma_of_the_host())
      device_.emplace(verbs::FakeOptions{.in_background = true});
  }
  void TearDown() override {
    if (!device_) return;
    EXPECT_EQ(device_->misuses(), std::vector<std::string>());
    EXPECT_EQ(device_->objects_left(), 0);
  }
  static bool is_mixed() { return GetParam() == "shm and tcp"; }
  static std::vector<Config> configs() {
    std::vector<Config> all(kRanks, config_of(is_mixed() ? "auto" : GetParam()));
    if (is_mixed())
      for (Rank rank = 0; rank < kRanks; rank++) all[rank].hostid = rank < 2 ? "a" : "b";
    return all;
  }
  void run(const std::function<void(Mesh&, Offers&)>& body) {
    Offers offers(kRanks);
    auto errors = run_ranks(configs(), [&](Mesh& mesh) {
      try {
        body(mesh, offers);
      } catch (...) {
        offers.drop_out();  // so that the others do not wait for it
        throw;
      }
      offers.wait();
    });
    EXPECT_EQ(errors, std::vector<std::string>(kRanks));
  }
  /// Channels have them made, but do not wait for them.
  static void await_lifelines(Mesh& mesh) {
    for (Rank peer = 0; peer < kRanks; peer++)
      for (Deadline deadline(seconds(20)); peer != mesh.rank() && !mesh.lifelines().has(peer);) {
        check(!deadline.passed(), Code::kTimeout, "no lifeline to rank {}", peer);
        std::this_thread::sleep_for(milliseconds(1));
      }
  }
  /// In the order that reverses the mesh's.
  static std::vector<Rank> half_of(Rank rank) {
    return rank % 2 ? std::vector<Rank>{3, 1} : std::vector<Rank>{2, 0};
  }

 private:
  std::optional<verbs::FakeVerbs> device_;
};
INSTANTIATE_TEST_SUITE_P(, MessagesTest,
                         ::testing::Values("loopback", "shm", "tcp", "verbs", "shm and tcp"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

std::vector<Rank> others_of(const MessageChannels& channels) {
  std::vector<Rank> others;
  for (Rank rank = 0; rank < channels.size(); rank++)
    if (rank != channels.rank()) others.push_back(rank);
  return others;
}

/// For how long a processor has worked for this thread.
Duration thread_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// Every rank sends every other some messages, short and long, and takes what comes from whomever.
/// Whom it turns to first, and when it first looks for what comes, is left to chance.
void exchange(Group& group, uint64_t seed, int messages = 3) {
  std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(group.rank()));
  Post post(group);
  std::vector<Rank> to = others_of(post.channels());
  for (int n = 0; n < messages; n++) {
    std::ranges::shuffle(to, random);
    for (Rank peer : to) post.send(peer, random() % 3 ? random() % 900 : 5000 + random() % 90'000);
    if (random() % 2) post.look();
  }
  post.receive(to.size() * static_cast<size_t>(messages));
  post.complete();
}

TEST_P(MessagesTest, OpenFromEitherSideInAnyOrder) {
  run([](Mesh& mesh, Offers& offers) {
    for (uint64_t round = 0; round < 12; round++) {
      auto group = offers.make(mesh, {3, 1, 0, 2});
      exchange(*group, round);
      offers.wait();
    }
  });
}

// In the group of all beside calls, and in groups of some: none sees what is the others'.
TEST_P(MessagesTest, OfGroupsAndOfAllAtOnceInThreads) {
  run([](Mesh& mesh, Offers& offers) {
    auto half = offers.make(mesh, half_of(mesh.rank()));
    auto all = offers.make(mesh, {2, 3, 1, 0});
    auto quarter = offers.make(mesh, mesh.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3});
    std::vector<std::thread> threads;
    uint64_t seed = 7;
    for (Group* group : {half.get(), all.get(), quarter.get(), &mesh.whole()})
      threads.emplace_back([group, seed = seed++] { exchange(*group, seed, 20); });
    for (auto& thread : threads) thread.join();
    offers.wait();
  });
}

TEST_P(MessagesTest, OfManyGroupsThatAreMadeUsedAndLeft) {
  run([](Mesh& mesh, Offers& offers) {
    std::vector<std::unique_ptr<Group>> groups;
    for (uint64_t n = 0; n < 40; n++) {
      groups.push_back(offers.make(mesh, half_of(mesh.rank())));
      exchange(*groups.back(), n, 1);
      if (n % 3 == 0) groups.erase(groups.begin());
    }
    offers.wait();
    for (auto& group : groups) exchange(*group, 77, 1);
    offers.wait();
  });
}

// One that does nothing but wait is woken by whoever comes, however late.
TEST_P(MessagesTest, WakeOneThatWaitsForAnybody) {
  run([](Mesh& mesh, Offers& offers) {
    auto group = offers.make(mesh, {0, 1, 2, 3});
    for (int turn = 0; turn < 10; turn++) {
      Rank waits = turn % 4;
      if (group->rank() == waits) {
        Post post(*group);
        post.receive(3);
        EXPECT_LT(post.vain_sleeps(), 30) << "sleeps of 50 ms at most";
      } else {
        std::this_thread::sleep_for(milliseconds(group->rank() * turn % 5));
        Post post(*group);
        post.send(waits, 40);
        post.complete();
      }
      offers.wait();
    }
  });
}

// What a rank sends just before it leaves is received, whoever has opened the channel, and when.
TEST_P(MessagesTest, SentBeforeARankLeavesArrive) {
  run([](Mesh& mesh, Offers& offers) {
    for (bool used : {false, true}) {
      auto group = offers.make(mesh, {0, 1, 2, 3});
      if (used) exchange(*group, 5);
      offers.wait();
      if (group->rank() != 1) {
        Post post(*group);
        post.send(1, 100);
        post.complete();
        group.reset();
        offers.wait();
      } else {
        if (GetParam() != "verbs") offers.wait();  // it takes both ends to connect those
        Post post(*group);
        post.receive(3);
        if (GetParam() == "verbs") offers.wait();
      }
    }
  });
}

/// A group of all, of which rank 0 has sent rank 1 a message from the group's memory, which that
/// has not looked at, and has left.
std::unique_ptr<Group> left_by_a_sender(Mesh& mesh, Offers& offers) {
  auto group = offers.make(mesh, {0, 1, 2, 3});
  exchange(*group, 1);
  offers.wait();
  if (mesh.rank() == 0) {
    Post post(*group);
    post.send(1, 5000);
    post.hand_over();
    group.reset();
  }
  offers.wait();
  return group;
}

// It lies in memory of a group that its sender has left, where other groups write.
TEST_P(MessagesTest, SentBeforeARankLeavesIsNotWrittenOver) {
  if (GetParam() == "loopback") return;  // sends from memory of the caller's, and waits for it
  run([](Mesh& mesh, Offers& offers) {
    auto group = left_by_a_sender(mesh, offers);
    auto later = offers.make(mesh, {0, 1, 2, 3});
    std::span<std::byte> staging = later->messages().staging();
    fill(staging.data(), staging.size(), 77);
    exchange(*later, 2);
    offers.wait();
    if (mesh.rank() == 1) {
      Post post(*group);
      post.receive(1);
    }
    offers.wait();
  });
}

// A rank that takes nothing is waited for with memory, and not longer than it is in the group.
TEST_P(MessagesTest, WhatNobodyHasTakenKeepsItsMemoryUntilThePeersHaveLeft) {
  run([](Mesh& mesh, Offers& offers) {
    auto group = left_by_a_sender(mesh, offers);
    bool keeps = GetParam().starts_with("shm");
    auto takes_all = [&] { return testing::takes_all(mesh.message_extents()); };
    EXPECT_TRUE(mesh.rank() != 0 || takes_all() != keeps);
    offers.wait();
    if (mesh.rank() == 1) group.reset();
    offers.wait();
    EXPECT_TRUE(mesh.rank() != 0 || takes_all());
    offers.wait();
  });
}

TEST_P(MessagesTest, AWaitEndsWhenItIsWokenOrTheGroupFails) {
  run([](Mesh& mesh, Offers& offers) {
    auto group = offers.make(mesh, {0, 1, 2, 3});
    MessageChannels& channels = group->messages();
    std::atomic<bool> stop{false};
    auto waker = std::async(std::launch::async, [&] {
      stop = true;
      channels.wake();
    });
    for (Deadline deadline(seconds(20)); !stop;) {
      check(!deadline.passed(), Code::kTimeout, "it is not woken");
      channels.progress();
      channels.wait(seconds(5), 0);
    }
    waker.get();
    offers.wait();
    if (group->rank() == 2) group->health().poison(Error(Code::kAborted, "enough", 2));
    try {
      for (Deadline deadline(seconds(20)); !deadline.passed();) {
        channels.progress();
        channels.wait(seconds(5), 0);
      }
      ADD_FAILURE() << "it does not notice";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kAborted);
      EXPECT_EQ(error.rank(), 2);
    }
    try {
      channels.try_open(group->rank() == 0 ? 1 : 0);
      ADD_FAILURE() << "it opens in a group that has failed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kAborted);
    }
    offers.wait();
    exchange(mesh.whole(), 3);  // others do not mind
    offers.wait();
  });
}

// A wait that nobody wakes ends by itself after 50 ms, so nothing but the time shows a ring that is
// missing. The fourth of 15 is compared, for a busy machine makes some late.
TEST_P(MessagesTest, AWaitEndsAsSoonAsItIsWoken) {
  run([](Mesh& mesh, Offers& offers) {
    auto group = offers.make(mesh, {0, 1, 2, 3});
    MessageChannels& channels = group->messages();
    std::vector<Duration> took(15);
    for (Duration& each : took) {
      Clock::time_point woken;
      auto waker = std::async(std::launch::async, [&] {
        std::this_thread::sleep_for(milliseconds(3));  // by then the other one sleeps
        woken = Clock::now();
        channels.wake();
      });
      channels.progress();
      channels.wait(seconds(5), 0);
      auto ended = Clock::now();
      waker.get();
      each = ended - woken;
      channels.wait(Duration(1), 0);  // takes note of a wake that came after the wait
    }
    offers.wait();
    std::ranges::nth_element(took, took.begin() + 3);
    EXPECT_LT(took[3], milliseconds(25));  // it ends by itself after 50
  });
}

TEST_P(MessagesTest, AWaitEndsAsSoonAsAPeerOpensAChannel) {
  std::array<std::atomic<Clock::rep>, kRanks> began{};
  run([&](Mesh& mesh, Offers& offers) {
    bool waits = mesh.rank() % 2 == 0;
    Rank peer = mesh.rank() ^ 1;
    std::vector<Duration> took(15);
    for (Duration& each : took) {
      auto group = offers.make(mesh, mesh.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3});
      MessageChannels& channels = group->messages();
      offers.wait();
      Deadline deadline(seconds(40));
      if (!waits) {
        std::this_thread::sleep_for(milliseconds(3));  // by then the other one sleeps
        began[mesh.rank()] = Clock::now().time_since_epoch().count();
      }
      auto is_open = [&] {
        channels.progress();
        return waits ? !channels.open().empty() : channels.try_open(0);
      };
      while (!is_open()) {
        check(!deadline.passed(), Code::kTimeout, "no channel");
        if (waits) channels.wait(seconds(5), 0);
      }
      offers.wait();
      if (waits) each = Clock::now().time_since_epoch() - Duration(began[peer]);
    }
    std::ranges::nth_element(took, took.begin() + 3);
    EXPECT_LT(took[3], milliseconds(25));  // it ends by itself after 50
  });
}

TEST_P(MessagesTest, AWaitForNothingTakesNoProcessor) {
  run([](Mesh& mesh, Offers& offers) {
    auto group = offers.make(mesh, {0, 1, 2, 3});
    exchange(*group, 5);  // all channels are open
    MessageChannels& channels = group->messages();
    await_lifelines(mesh);
    offers.wait();
    Duration before = thread_time();
    for (Deadline deadline(milliseconds(200)); group->rank() == 0 && !deadline.passed();) {
      channels.progress();
      channels.wait(deadline.left(), 0);
    }
    EXPECT_LT(thread_time() - before, milliseconds(40));
    offers.wait();
  });
}

// What is not used costs no descriptor and no thread; a group that was used leaves nothing.
TEST_P(MessagesTest, CostNothingUnlessTheyAreUsed) {
  run([](Mesh& mesh, Offers& offers) {
    auto warm = offers.make(mesh, {0, 1, 2, 3});
    exchange(*warm, 1);  // all lifelines are there, soon
    await_lifelines(mesh);
    wake_all(mesh.whole(), offers);
    warm.reset();
    Used before = Used::count(mesh, offers);
    std::vector<std::unique_ptr<Group>> groups;
    for (int n = 0; n < 8; n++) groups.push_back(offers.make(mesh, {3, 2, 1, 0}));
    Used made = Used::count(mesh, offers);
    EXPECT_EQ(made.descriptors, before.descriptors);
    EXPECT_EQ(made.threads, before.threads);
    for (auto& group : groups) exchange(*group, 9, 1);
    groups.clear();
    Used after = Used::count(mesh, offers);
    EXPECT_EQ(after.descriptors, before.descriptors);
  });
}

TEST_P(MessagesTest, OfOneWhoHasLeftAreNotAskedFor) {
  run([](Mesh& mesh, Offers& offers) {
    auto group = offers.make(mesh, {0, 1, 2, 3});
    exchange(*group, 4);
    exchange(mesh.whole(), 4);
    await_lifelines(mesh);
    offers.wait();
    auto later = offers.make(mesh, {0, 1, 2, 3});
    if (group->rank() == 3) later.reset();
    offers.wait();
    if (group->rank() != 3) {
      for (Deadline deadline(seconds(20)); !later->health().gone(3) && !deadline.passed();)
        std::this_thread::sleep_for(milliseconds(1));
      try {
        later->messages().try_open(3);
        ADD_FAILURE() << "it opens to one who has left";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kPeerLost);
      }
    }
    offers.wait();
  });
}

}  // namespace
}  // namespace ringcoll
