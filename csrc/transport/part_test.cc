// What every transport's parts must do, asked of every row of the registry.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "transport/verbs/device_testing.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr size_t kOwnBytes = 1 << 20;     // of the arena, the whole's
constexpr size_t kExtentBytes = 1 << 20;  // of a part
constexpr size_t kExtents = 4;

class Parts : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    Probe probe = row().probe(test_config());
    if (!probe.usable) GTEST_SKIP() << row().name << ": " << probe.detail;
  }
  const TransportRow& row() const { return *find_transport(GetParam()); }
  std::unique_ptr<World> world_of(Rank size) {
    return std::make_unique<World>(row(), size, kOwnBytes + kExtents * kExtentBytes, Seats{},
                                   kOwnBytes);
  }
  /// With the i-th extent of its ranks.
  std::unique_ptr<PartWorld> part_of(World& world, const std::vector<Rank>& members, size_t i = 0) {
    return std::make_unique<PartWorld>(world, members, kOwnBytes + i * kExtentBytes, kExtentBytes);
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, Parts, ::testing::ValuesIn(testing::transport_names()),
                         [](const auto& info) { return std::string(info.param); });

constexpr uint64_t kSizes[] = {
    0, 1, kTestInlineBytes - 1, kTestInlineBytes, kTestInlineBytes + 1, 4096, 9000, 70001, 300000};

/// One end of an exchange: messages of all sizes there and back, from memory that may be sent from.
/// `seed` tells what it carries from what others do.
void exchange(Endpoint& link, std::byte* memory, uint64_t rounds, uint64_t seed) {
  std::vector<std::byte> place(400000);
  for (uint64_t n = seed; n < seed + rounds * std::size(kSizes); n++) {
    uint64_t bytes = kSizes[n % std::size(kSizes)], number = 0;
    fill(memory, bytes, n);
    until(link, "send", [&] { return (number = link.try_send(envelope_of(n), memory, bytes)); });
    View view = receive(link, place.data(), place.size());
    check(view.envelope == envelope_of(n) && view.bytes == bytes && filled(view.data, bytes, n),
          Code::kInternal, "message {} from {} on is not what was sent", n, seed);
    link.release();
    complete(link, number);
  }
}

/// Both ends of it, in two threads.
void exchange(Endpoint& here, std::byte* mine, Endpoint& there, std::byte* theirs, uint64_t rounds,
              uint64_t seed) {
  auto peer = std::async(std::launch::async, [&] { exchange(there, theirs, rounds, seed); });
  exchange(here, mine, rounds, seed);
  peer.get();
}
void exchange(PartWorld& part, uint64_t rounds, uint64_t seed) {
  exchange(part[0][1], part[0].extent.data(), part[1][0], part[1].extent.data(), rounds, seed);
}
void exchange(World& world, Rank a, Rank b, uint64_t rounds, uint64_t seed) {
  exchange(world[a][b], world[a].arena.data(), world[b][a], world[b].arena.data(), rounds, seed);
}

int open_descriptors() {
  auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

TEST_P(Parts, AnAddressIsShortAndNonsenseIsRefused) {
  auto world = world_of(3);
  PartWorld part(*world, {2, 0}, kOwnBytes, kExtentBytes, false);
  Transport& transport = *part[0].transport;
  std::string own = transport.address(), good = part[1].transport->address();
  EXPECT_LE(own.size(), kMaxPartAddressBytes);
  EXPECT_NE(transport.reach(1, good + "x"), "");
  EXPECT_NE(transport.reach(1, std::string(kMaxPartAddressBytes, 'x')), "");
  EXPECT_NE(transport.reach(1, std::string(good.size(), '\0')), "");
  EXPECT_NE(transport.reach(1, good.substr(1)), "");
  EXPECT_NE(transport.reach(1, own), "") << "it is rank 0's own";
  EXPECT_EQ(transport.reach(1, good), "");
}

// In another order than the whole's, and without its middle.
TEST_P(Parts, CarryMessagesWhileTheWholeDoes) {
  auto world = world_of(3);
  auto part = part_of(*world, {2, 0});
  auto whole = std::async(std::launch::async, [&] { exchange(*world, 0, 2, 20, 1000); });
  exchange(*part, 20, 2000);
  whole.get();
}

TEST_P(Parts, OfThreeRanksJoinEachPair) {
  auto world = world_of(4);
  auto part = part_of(*world, {3, 1, 2});
  for (auto [a, b] : {std::pair{0, 1}, {1, 2}, {0, 2}})
    exchange((*part)[a][b], (*part)[a].extent.data(), (*part)[b][a], (*part)[b].extent.data(), 2,
             static_cast<uint64_t>(a * 10 + b));
}

// Each is made, used and ended by a thread of its own, many times, while the others are at work.
TEST_P(Parts, SeveralOfOnePairAreMadeUsedAndEndedAtOnce) {
  auto world = world_of(2);
  std::vector<std::future<void>> threads;
  for (size_t i = 0; i < kExtents; i++)
    threads.push_back(std::async(std::launch::async, [&, i] {
      for (uint64_t turn = 0; turn < 6; turn++) {
        auto part = part_of(*world, i % 2 ? std::vector{1, 0} : std::vector{0, 1}, i);
        exchange(*part, 3, i * 100'000 + turn * 1000);
      }
    }));
  exchange(*world, 0, 1, 20, 999'000);
  for (auto& thread : threads) thread.get();
}

TEST_P(Parts, OneThatEndsLeavesTheOthersAlone) {
  auto world = world_of(2);
  auto stays = part_of(*world, {0, 1}, 0), ends = part_of(*world, {0, 1}, 1);
  exchange(*ends, 1, 10);
  ends->remove(0);
  exchange(*stays, 1, 20);
  ends->remove(1);
  exchange(*stays, 1, 30);
  exchange(*world, 0, 1, 1, 40);
}

// What a rank has sent still arrives when it has ended the part, and made others since.
TEST_P(Parts, WhatWasSentBeforeOneEndedArrives) {
  auto world = world_of(2);
  auto part = part_of(*world, {0, 1});
  std::byte data[64];
  for (uint64_t n = 1; n <= 5; n++) {
    fill(data, sizeof data, n);
    send((*part)[0][1], envelope_of(n), data, sizeof data);
  }
  complete((*part)[0][1], 5);
  drain((*part)[0][1]);
  part->remove(0);
  for (uint64_t turn = 0; turn < 3; turn++) exchange(*part_of(*world, {0, 1}, 1), 5, 1000 * turn);
  for (uint64_t n = 1; n <= 5; n++) {
    View view = receive((*part)[1][0]);
    EXPECT_EQ(view.envelope, envelope_of(n));
    EXPECT_TRUE(filled(view.data, view.bytes, n)) << n;
    (*part)[1][0].release();
  }
}

// Nor is a link broken that the peer has not proven yet: who leaves waits for that (drained()).
TEST_P(Parts, WhatWasSentBeforeThePeerHadProvenTheLinkArrives) {
  auto world = world_of(2);
  PartWorld part(*world, {0, 1}, kOwnBytes, kExtentBytes, false);
  for (Rank rank : {0, 1}) part[rank].connect(1 - rank, part[1 - rank].transport->address());
  for (Rank rank : {0, 1}) part[rank].each(&Endpoint::try_establish);
  part[0].each(&Endpoint::try_prove);
  send(part[0][1], envelope_of(1), "hello", 5);
  bool may_leave = false;
  for (int i = 0; i < 10'000 && !may_leave; i++) may_leave = part[0][1].drained();
  if (may_leave) part.remove(0);
  part[1].each(&Endpoint::try_prove);
  if (!may_leave) {
    drain(part[0][1]);
    part.remove(0);
  }
  EXPECT_EQ(receive(part[1][0]).bytes, 5u);
  part[1][0].release();
}

// Nor need a peer have looked at the part until then.
TEST_P(Parts, OneThatHasEndedIsReachedAllTheSame) {
  auto world = world_of(2);
  PartWorld part(*world, {1, 0}, kOwnBytes, kExtentBytes, false);
  std::string address = part[0].transport->address();
  part[0].connect(1, part[1].transport->address());
  bool alone = part[0][1].try_establish(Deadline(milliseconds(10)));
  if (alone) {
    send(part[0][1], envelope_of(1), "hello", 5);
    drain(part[0][1]);
  }
  part.remove(0);
  if (!alone) {
    EXPECT_EQ(part[1].transport->reach(0, address), "");
    return;  // it takes both to make this link
  }
  exchange(*part_of(*world, {0, 1}, 1), 2, 1000);
  part[1].connect(0, address);
  EXPECT_EQ(receive(part[1][0]).bytes, 5u);
  part[1][0].release();
}

// A rank knows that its messages were released, though the peer has gone since and made others.
TEST_P(Parts, WhatWasReleasedBeforeOneEndedStaysSo) {
  auto world = world_of(2);
  auto part = part_of(*world, {0, 1});
  constexpr uint64_t kBytes = 5000;
  fill((*part)[1].extent.data(), kBytes, 1);
  send((*part)[1][0], envelope_of(1), (*part)[1].extent.data(), kBytes);
  flush((*part)[1][0]);
  EXPECT_TRUE(filled(receive((*part)[0][1]).data, kBytes, 1));
  (*part)[0][1].release();
  part->remove(0);
  for (uint64_t turn = 0; turn < 3; turn++) exchange(*part_of(*world, {0, 1}, 1), 5, 1000 * turn);
  complete((*part)[1][0], 1);
}

// The peer has not noticed that a part has ended, and goes on looking for messages of it: those of
// parts that came after are not for it.
TEST_P(Parts, AnOldLinkTakesNothingOfALaterPart) {
  auto world = world_of(2);
  std::vector<std::unique_ptr<PartWorld>> old;
  std::atomic<bool> stop{false};
  std::vector<std::future<int>> pollers;
  for (uint64_t turn = 0; turn < 4; turn++) {
    old.push_back(part_of(*world, {0, 1}, turn % kExtents));
    exchange(*old.back(), 1, 1000 * turn);
    old.back()->remove(0);
    pollers.push_back(std::async(std::launch::async, [&, link = &(*old.back())[1][0]] {
      int taken = 0;
      try {
        View view;
        for (; !stop; sleep_on(*link, milliseconds(1))) taken += link->try_recv(nullptr, 0, &view);
      } catch (const Error&) {  // it has noticed
      }
      return taken;
    }));
  }
  for (uint64_t turn = 0; turn < 10; turn++) exchange(*part_of(*world, {1, 0}), 3, 77'000 * turn);
  stop = true;
  for (auto& poller : pollers) EXPECT_EQ(poller.get(), 0);
}

TEST_P(Parts, WakeEndsAWaitOfThePart) {
  auto world = world_of(3);
  auto part = part_of(*world, {0, 1, 2});
  auto start = Clock::now();
  for (Rank waits : {1, 2})
    for (int turn = 0; turn < 10; turn++) {
      std::atomic<bool> stop{false};
      Endpoint& link = (*part)[0][waits];
      auto waiter = std::async(std::launch::async, [&] {
        View view;
        while (!stop) {
          link.try_recv(nullptr, 10, &view);
          sleep_on(link, seconds(10));
        }
      });
      std::this_thread::sleep_for(milliseconds(turn % 3));
      stop = true;
      (*part)[0].waits.wake();
      waiter.get();
    }
  EXPECT_LT(Clock::now() - start, seconds(5));
}

// However often what did not wait was woken, waits sleep again soon.
TEST_P(Parts, WakesThatCameBeforeDoNotKeepAWaitFromSleeping) {
  auto world = world_of(3);
  auto part = part_of(*world, {0, 1, 2});
  for (int i = 0; i < 100; i++) (*part)[0].waits.wake(), (*world)[0].waits.wake();
  View view;
  auto start = Clock::now();
  int turns = 0;
  for (; Clock::now() - start < milliseconds(60); turns++) {
    EXPECT_FALSE((*part)[0][1].try_recv(nullptr, 100, &view));
    (*part)[0].waits.sleep(milliseconds(20));
  }
  EXPECT_LT(turns, 10) << "it does not sleep";
}

// A loan is one transport's: what a part is lent, and what it revokes, is nothing to the whole and
// to others.
TEST_P(Parts, LendAndRevokeTheirOwn) {
  auto world = world_of(2);
  auto part = part_of(*world, {1, 0}, 0), other = part_of(*world, {0, 1}, 1);
  constexpr uint64_t kBytes = 200'000;
  auto memory = std::make_unique<std::byte[]>(kBytes);
  Loan loan{memory.get(), kBytes, false};
  for (int call = 0; call < 2; call++) (*part)[0].transport->lend({&loan, 1}, 0);
  if (loan.granted) {
    fill(memory.get(), kBytes, 5);
    auto sender = std::async(std::launch::async, [&] {
      send((*part)[0][1], envelope_of(1), memory.get(), kBytes);
      complete((*part)[0][1], 1);
    });
    View view = receive((*part)[1][0], (*part)[1].extent.data(), kBytes);
    EXPECT_TRUE(filled(view.data, kBytes, 5));
    (*part)[1][0].release();
    sender.get();
  }
  (*part)[0].transport->revoke();
  exchange(*other, 1, 10);
  exchange(*world, 0, 1, 1, 20);
}

/// Both ranks have a bell, and know the other's.
void sleep_once(Linked& a, Linked& b) {
  for (auto [sleeper, waker] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    auto late = std::async(std::launch::async, [waker = waker, sleeper = sleeper] {
      std::this_thread::sleep_for(milliseconds(20));
      send((*waker)[sleeper->own], envelope_of(1), "x", 1);
      flush((*waker)[sleeper->own]);
    });
    receive((*sleeper)[waker->own]);
    (*sleeper)[waker->own].release();
    late.get();
  }
}

// A link of a part is as many sockets as one of the whole, and a part of RDMA one descriptor more,
// a completion channel; in memory that is shared, none at all. What waits end by belongs to the
// waits.
TEST_P(Parts, NeedFewDescriptors) {
  auto world = world_of(2);
  sleep_once((*world)[0], (*world)[1]);
  int before = open_descriptors();
  auto part = part_of(*world, {0, 1});
  sleep_once((*part)[0], (*part)[1]);
  int each = (open_descriptors() - before) / 2;  // of two ranks
  auto most = static_cast<int>((*world)[0].transport->sockets_to(1));
  if (row().name == "verbs") most += 1;
  EXPECT_LE(each, most);
  part.reset();
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace ringcoll
