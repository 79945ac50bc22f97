// What every transport must do, asked of every row of the registry.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "base/error.h"
#include "transport/verbs/device_testing.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr size_t kArenaBytes = 4 << 20;

[[maybe_unused]] auto* const kDevice = ::testing::AddGlobalTestEnvironment(new RdmaForTests);

class Conformance : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    Probe probe = row().probe(test_config());
    if (!probe.usable) GTEST_SKIP() << row().name << ": " << probe.detail;
    EXPECT_NE(probe.detail, "");
  }
  const TransportRow& row() const { return *find_transport(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::ValuesIn(testing::transport_names()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Conformance, AddressIsShortAndNonsenseIsRefused) {
  Switchboard board;
  TestRank rank(row(), 0, 2, board, 4096);
  std::string address = rank.transport->address();
  EXPECT_LE(address.size(), kMaxAddressBytes);
  EXPECT_NE(rank.transport->reach(1, ""), "");
  EXPECT_NE(rank.transport->reach(1, std::string(address.size(), 'x')), "");
  EXPECT_NE(rank.transport->reach(1, address.substr(1)), "");
  EXPECT_NE(rank.transport->reach(1, address), "") << "it is rank 0's own";
}

TEST_P(Conformance, DeliversInOrderUnchangedWhateverTheSize) {
  World world(row(), 2, kArenaBytes);
  std::byte* arena = world[0].arena.data();
  uint64_t number = 0;
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{15}, uint64_t{16}, uint64_t{17},
                         kTestInlineBytes - 1, kTestInlineBytes, kTestInlineBytes + 1,
                         uint64_t{4096}, uint64_t{65537}, uint64_t{1000003}, uint64_t{0}}) {
    number++;
    std::byte* data = arena + number * 64;
    fill(data, bytes, number);
    std::thread sender([&] {
      send(world[0][1], envelope_of(number), data, bytes);
      complete(world[0][1], number);
    });
    View view = receive(world[1][0], nullptr, bytes);
    EXPECT_EQ(view.bytes, bytes);
    EXPECT_EQ(view.envelope, envelope_of(number));
    ASSERT_NE(view.data, nullptr);
    EXPECT_TRUE(filled(view.data, bytes, number)) << bytes;
    world[1][0].release();
    sender.join();
  }
  View view;
  EXPECT_FALSE(world[1][0].try_recv(nullptr, 0, &view));
}

TEST_P(Conformance, SmallMessagesNeedNotLieInTheArena) {
  World world(row(), 2, 4096);
  for (uint64_t number = 1; number <= 100; number++) {
    std::vector<std::byte> data(kTestInlineBytes);
    fill(data.data(), data.size(), number);
    send(world[0][1], envelope_of(number), data.data(), data.size());
    complete(world[0][1], number);
    fill(data.data(), data.size(), 0);
    View view = receive(world[1][0]);
    EXPECT_TRUE(filled(view.data, view.bytes, number));
    world[1][0].release();
  }
}

// Also behind one that nobody has received, so that none of them is complete.
TEST(WithinAHost, SmallMessagesHaveBeenCopiedWhenTheyAreSent) {
  constexpr uint64_t kBytes = kTestInlineBytes + 1, kSmall = 5;
  int tried = 0;
  for (const auto& name : testing::transport_names()) {
    const TransportRow& row = *find_transport(name);
    if (row.link == LinkClass::kNetwork) continue;
    tried++;
    World world(row, 2, kArenaBytes);
    fill(world[0].arena.data(), kBytes, 1);
    send(world[0][1], envelope_of(1), world[0].arena.data(), kBytes);
    for (uint64_t number = 2; number < 2 + kSmall; number++) {
      std::vector<std::byte> data(kTestInlineBytes);
      fill(data.data(), data.size(), number);
      send(world[0][1], envelope_of(number), data.data(), data.size());
      fill(data.data(), data.size(), 0);
    }
    EXPECT_EQ(world[0][1].completed(), 0u) << name;
    for (uint64_t number = 1; number < 2 + kSmall; number++) {
      View view = receive(world[1][0]);
      EXPECT_TRUE(filled(view.data, view.bytes, number)) << name << ", " << number;
      world[1][0].release();
    }
  }
  EXPECT_EQ(tried, 2);
}

TEST_P(Conformance, CarriesAHugeMessage) {
  constexpr uint64_t kHuge = 64 << 20;
  World world(row(), 2, kHuge);
  fill(world[0].arena.data(), kHuge, 7);
  auto sender = std::async(std::launch::async, [&] {
    send(world[0][1], envelope_of(1), world[0].arena.data(), kHuge);
    complete(world[0][1], 1);
  });
  View view = receive(world[1][0], world[1].arena.data(), kHuge);
  EXPECT_EQ(view.bytes, kHuge);
  EXPECT_TRUE(filled(view.data, kHuge, 7));
  world[1][0].release();
  sender.get();
}

TEST_P(Conformance, ManyInFlightAndBeyondTheCredits) {
  World world(row(), 2, kArenaBytes);
  constexpr uint64_t kBytes = 32 << 10;
  std::byte* data = world[0].arena.data();
  fill(data, kBytes, 1);
  uint64_t sent = 0;
  while (sent < 2000 && world[0][1].try_send(envelope_of(sent + 1), data, kBytes)) sent++;
  EXPECT_GE(sent, 16u) << "too few for a pipeline";
  EXPECT_LT(sent, 2000u) << "without end";
  EXPECT_LE(world[0][1].completed(), sent);
  uint64_t goal = sent + 500;
  auto rest = std::async(std::launch::async, [&] {
    for (uint64_t n = sent + 1; n <= goal; n++)
      send(world[0][1], envelope_of(n), data, n % 2 ? kBytes : 8);
    complete(world[0][1], goal);
  });
  for (uint64_t n = 1; n <= goal; n++) {
    View view = receive(world[1][0]);
    ASSERT_EQ(view.envelope, envelope_of(n));
    ASSERT_TRUE(filled(view.data, view.bytes, 1));
    world[1][0].release();
  }
  rest.get();
  EXPECT_EQ(world[0][1].completed(), goal);
}

TEST_P(Conformance, SeveralViewsAtOnce) {
  World world(row(), 2, kArenaBytes);
  std::byte* arena = world[0].arena.data();
  std::vector<View> views;
  for (uint64_t n = 1; n <= 8; n++) {
    fill(arena + n * 1000, 1000, n);
    send(world[0][1], envelope_of(n), arena + n * 1000, n % 2 ? 1000 : 100);
  }
  for (uint64_t n = 1; n <= 8; n++) views.push_back(receive(world[1][0]));
  for (uint64_t n = 1; n <= 8; n++)
    EXPECT_TRUE(filled(views[n - 1].data, n % 2 ? 1000 : 100, n)) << n;
  for (uint64_t n = 1; n <= 8; n++) world[1][0].release();
  EXPECT_THROW(world[1][0].release(), Error);
  complete(world[0][1], 8);
}

TEST_P(Conformance, BothDirectionsAtOnce) {
  World world(row(), 2, kArenaBytes);
  constexpr uint64_t kBytes = 1 << 20;
  auto run = [&](Rank me) {
    Endpoint& link = world[me][1 - me];
    std::byte* out = world[me].arena.data();
    std::byte* in = out + kBytes;
    for (uint64_t n = 1; n <= 20; n++) {
      fill(out, kBytes, n + 100 * static_cast<uint64_t>(me));
      send(link, envelope_of(n), out, kBytes);
      View view = receive(link, in, kBytes);
      check(filled(view.data, kBytes, n + 100 * static_cast<uint64_t>(1 - me)), Code::kInternal,
            "message {} is damaged", n);
      link.release();
      complete(link, n);
    }
  };
  auto other = std::async(std::launch::async, run, 1);
  run(0);
  other.get();
}

// A rank waits for one peer while the peer waits for what this rank still has queued for a third:
// the wait must not keep that from moving.
TEST_P(Conformance, ARingOfLargeMessagesDoesNotJam) {
  constexpr Rank kSize = 3;
  constexpr uint64_t kBytes = 8 << 20;
  World world(row(), kSize, 2 * kBytes);
  auto run = [&](Rank me) {
    Endpoint& to = world[me][(me + 1) % kSize];
    Endpoint& from = world[me][(me + kSize - 1) % kSize];
    for (uint64_t n = 1; n <= 3; n++) {
      std::byte* out = world[me].arena.data();
      fill(out, kBytes, static_cast<uint64_t>(me));
      send(to, envelope_of(n), out, kBytes);
      View view = receive(from, out + kBytes, kBytes);
      check(filled(view.data, kBytes, static_cast<uint64_t>((me + kSize - 1) % kSize)),
            Code::kInternal, "message {} is damaged", n);
      from.release();
      complete(to, n);
    }
  };
  std::vector<std::future<void>> ranks;
  for (Rank r = 0; r < kSize; r++) ranks.push_back(std::async(std::launch::async, run, r));
  for (auto& rank : ranks) rank.get();
}

// Who leaves after busy() has become false leaves nothing behind that the peer waits for.
TEST_P(Conformance, WhatIsBusyMovesByProgressAlone) {
  World world(row(), 2, kArenaBytes);
  Endpoint& link = world[0][1];
  EXPECT_FALSE(link.busy());
  uint64_t sent = 0;
  while (sent < 25 && link.try_send(envelope_of(sent + 1), world[0].arena.data(), 1 << 20)) sent++;
  auto receiver = std::async(std::launch::async, [&] {
    for (uint64_t n = 1; n <= sent; n++) {
      receive(world[1][0]);
      world[1][0].release();
    }
  });
  Deadline deadline(seconds(20));
  while (link.busy() && !deadline.passed()) link.progress();
  EXPECT_FALSE(link.busy());
  receiver.get();
  complete(link, sent);
  EXPECT_EQ(link.completed(), sent);
}

TEST_P(Conformance, AMessageThatIsTooLongIsReportedAndDropped) {
  World world(row(), 2, kArenaBytes);
  std::byte* arena = world[0].arena.data();
  for (uint64_t bytes : {uint64_t{100}, uint64_t{100000}}) {
    fill(arena, bytes, 3);
    auto sender = std::async(std::launch::async, [&] {
      send(world[0][1], envelope_of(1), arena, bytes);
      send(world[0][1], envelope_of(2), arena, 50);
      flush(world[0][1]);
    });
    std::vector<std::byte> place(bytes, std::byte{0xee});
    View view = receive(world[1][0], place.data(), bytes - 1);
    EXPECT_EQ(view.data, nullptr);
    EXPECT_EQ(view.bytes, bytes);
    EXPECT_EQ(view.envelope, envelope_of(1));
    EXPECT_EQ(place, std::vector<std::byte>(bytes, std::byte{0xee}));
    world[1][0].release();
    view = receive(world[1][0], nullptr, 50);
    EXPECT_EQ(view.envelope, envelope_of(2));
    EXPECT_TRUE(filled(view.data, 50, 3));
    world[1][0].release();
    sender.get();
  }
}

TEST_P(Conformance, APlaceIsHonouredOrLeftAlone) {
  World world(row(), 2, kArenaBytes);
  std::byte* arena = world[0].arena.data();
  for (uint64_t bytes : {uint64_t{10}, uint64_t{70000}}) {
    fill(arena, bytes, 5);
    auto sender = std::async(std::launch::async, [&] {
      send(world[0][1], envelope_of(1), arena, bytes);
      flush(world[0][1]);
    });
    std::vector<std::byte> place(bytes + 128, std::byte{0xee});
    View view = receive(world[1][0], place.data(), bytes + 64);
    ASSERT_EQ(view.bytes, bytes);
    EXPECT_TRUE(filled(view.data, bytes, 5));
    uint64_t used = view.data == place.data() ? bytes : 0;
    for (uint64_t i = used; i < place.size(); i++) ASSERT_EQ(place[i], std::byte{0xee}) << i;
    world[1][0].release();
    sender.get();
  }
}

// However far ahead: also further than messages may be under way.
TEST_P(Conformance, WhatIsExpectedIsHonouredOrLeftAlone) {
  constexpr uint64_t kMessages = 100, kBytes = 20000;
  auto bytes_of = [](uint64_t n) { return n % 5 == 1 ? 40 : kBytes - n; };
  for (uint64_t ahead : {4, 40}) {
    World world(row(), 2, kArenaBytes);
    std::byte* arena = world[0].arena.data();
    auto place_of = [&](uint64_t n) {
      return n % 3 == 0 ? nullptr : world[1].arena.data() + n * kBytes;
    };
    auto sender = std::async(std::launch::async, [&] {
      for (uint64_t n = 1; n <= kMessages; n++) {
        fill(arena + n * kBytes, bytes_of(n), n);
        send(world[0][1], envelope_of(n), arena + n * kBytes, bytes_of(n));
      }
      flush(world[0][1]);
    });
    for (uint64_t n = 1; n <= ahead; n++) world[1][0].expect(place_of(n), bytes_of(n));
    for (uint64_t n = 1; n <= kMessages; n++) {
      uint64_t next = n + ahead;
      if (next <= kMessages) world[1][0].expect(place_of(next), bytes_of(next));
      View view = receive(world[1][0], place_of(n), bytes_of(n));
      ASSERT_EQ(view.bytes, bytes_of(n));
      ASSERT_EQ(view.envelope, envelope_of(n));
      EXPECT_TRUE(filled(view.data, view.bytes, n)) << n;
      world[1][0].release();
    }
    sender.get();
  }
}

TEST_P(Conformance, MemoryMayBeOverwrittenOnceCompletedSaysSo) {
  World world(row(), 2, kArenaBytes);
  constexpr uint64_t kBytes = 300000;
  std::byte* data = world[0].arena.data();
  auto sender = std::async(std::launch::async, [&] {
    uint64_t before = 0;
    for (uint64_t n = 1; n <= 100; n++) {
      uint64_t bytes = n % 3 ? kBytes : 100;
      fill(data, bytes, n);
      send(world[0][1], envelope_of(n), data, bytes);
      until(world[0][1], "complete", [&] {
        uint64_t now = world[0][1].completed();
        check(now >= before && now <= n, Code::kInternal, "{} after {} of {}", now, before, n);
        before = now;
        return now == n;
      });
    }
  });
  for (uint64_t n = 1; n <= 100; n++) {
    View view = receive(world[1][0]);
    if (n % 10 == 0) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(filled(view.data, view.bytes, n)) << n;
    world[1][0].release();
  }
  sender.get();
}

TEST_P(Conformance, ACompletionBehindAnUnreleasedMessageWaitsForIt) {
  World world(row(), 2, kArenaBytes);
  std::byte* arena = world[0].arena.data();
  for (uint64_t n = 1; n <= 20; n++)
    send(world[0][1], envelope_of(n), arena + n * 4096, n % 2 ? 4096 : 16);
  uint64_t before = world[0][1].completed();
  EXPECT_LE(before, 20u);
  for (uint64_t n = 1; n <= 20; n++) {
    receive(world[1][0]);
    world[1][0].release();
    uint64_t now = world[0][1].completed();
    EXPECT_GE(now, std::max(n, before));
    before = now;
  }
}

TEST_P(Conformance, WhatWasSentBeforeAGracefulEndArrives) {
  World world(row(), 2, kArenaBytes);
  for (uint64_t n = 1; n <= 5; n++) {
    std::byte data[64];
    fill(data, sizeof data, n);
    send(world[1][0], envelope_of(n), data, sizeof data);
    complete(world[1][0], n);
  }
  drain(world[1][0]);
  world.remove(1);
  for (uint64_t n = 1; n <= 5; n++) {
    View view = receive(world[0][1]);
    EXPECT_TRUE(filled(view.data, 64, n));
    world[0][1].release();
  }
}

// Shared memory does not notice by itself that a peer has gone, and RDMA only when it writes to it:
// that is what lifelines are for. No transport may hang or read memory that is gone.
TEST_P(Conformance, PeerGoneWithWorkPending) {
  World world(row(), 2, kArenaBytes);
  Endpoint& link = world[0][1];
  std::byte* arena = world[0].arena.data();
  while (link.try_send(envelope_of(1), arena, 100000)) {
  }
  world[1][0].try_send(envelope_of(1), world[1].arena.data(), 100000);
  world.remove(1);
  bool lost = false;
  Deadline deadline(milliseconds(300));
  try {
    View view;
    while (!deadline.passed()) {
      link.try_send(envelope_of(1), arena, 100000);
      if (link.try_recv(nullptr, 100000, &view)) link.release();
      link.completed();
      link.progress();
      sleep_on(link, milliseconds(10));
    }
  } catch (const Error& error) {
    lost = true;
    EXPECT_TRUE(error.code() == Code::kPeerLost || row().name == "verbs") << error.what();
    EXPECT_EQ(error.rank(), 1) << error.what();
    EXPECT_NE(std::string(error.what()).find("rank 0 -> 1"), std::string::npos) << error.what();
  }
  if (row().name != "verbs") {  // RDMA may or may not
    EXPECT_EQ(lost, row().name != "shm");
  }
}

TEST_P(Conformance, WaitEndsAtItsLimitAndSleepsUntilThen) {
  World world(row(), 2, 4096);
  View view;
  auto start = Clock::now();
  int turns = 0;
  for (; Clock::now() - start < milliseconds(60); turns++) {
    EXPECT_FALSE(world[0][1].try_recv(nullptr, 100, &view));
    world[0].waits.sleep(milliseconds(20));
  }
  EXPECT_LT(Clock::now() - start, seconds(5));
  EXPECT_LT(turns, 10) << "it does not sleep";
  world[0].waits.sleep(Duration::zero());
  world[0].waits.sleep(Duration(-5));
}

TEST_P(Conformance, WaitEndsWhenAMessageComes) {
  World world(row(), 2, 4096);
  auto sender = std::async(std::launch::async, [&] {
    for (uint64_t n = 1; n <= 20; n++) {
      std::this_thread::sleep_for(milliseconds(2));
      send(world[1][0], envelope_of(n), &n, sizeof n);
      complete(world[1][0], n);
    }
  });
  auto start = Clock::now();
  for (uint64_t n = 1; n <= 20; n++) {
    View view;
    while (!world[0][1].try_recv(nullptr, 8, &view)) world[0].waits.sleep(seconds(10));
    world[0][1].release();
  }
  sender.get();
  EXPECT_LT(Clock::now() - start, seconds(5));
}

TEST_P(Conformance, WaitForCreditSleepsThoughAMessageIsThere) {
  World world(row(), 2, kArenaBytes);
  Endpoint& link = world[0][1];
  uint64_t sent = 0;
  while (link.try_send(envelope_of(1), world[0].arena.data(), 1 << 20)) sent++;
  send(world[1][0], envelope_of(1), &sent, sizeof sent);
  std::this_thread::sleep_for(milliseconds(10));
  uint64_t reached = link.completed();
  int turns = 0;
  auto start = Clock::now();
  auto peer = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(milliseconds(50));
    for (uint64_t n = 1; n <= sent; n++) {
      receive(world[1][0]);
      world[1][0].release();
    }
  });
  for (; link.completed() <= reached; turns++) sleep_on(link, seconds(10));
  EXPECT_LT(Clock::now() - start, seconds(5));
  EXPECT_LT(turns, 25) << "it does not sleep";
  complete(link, sent);
  peer.get();
  EXPECT_EQ(receive(link).bytes, sizeof sent);
  link.release();
}

TEST_P(Conformance, WakeEndsAWaitOfAnotherThread) {
  World world(row(), 2, 4096);
  Endpoint& link = world[0][1];
  auto start = Clock::now();
  for (int turn = 0; turn < 20; turn++) {
    std::atomic<bool> stop{false};
    auto waiter = std::async(std::launch::async, [&] {
      View view;
      while (!stop) {
        link.try_recv(nullptr, 10, &view);
        sleep_on(link, seconds(10));
      }
    });
    std::this_thread::sleep_for(milliseconds(turn % 3));
    stop = true;
    world[0].waits.wake();
    waiter.get();
  }
  world[0].waits.wake();
  world[0].waits.wake();
  sleep_on(link, seconds(10));  // a wake that came before is not lost
  EXPECT_LT(Clock::now() - start, seconds(5));
}

// Ranks as two threads, sizes and timing at random, sleeping whenever there is nothing to do.
TEST_P(Conformance, TwoThreadsHammering) {
  World world(row(), 2, kArenaBytes);
  constexpr uint64_t kMessages = 5000;
  constexpr uint64_t kSlotBytes = 8192;
  constexpr uint64_t kSlots = 16;
  auto size_of_message = [](Rank from, uint64_t n) {
    uint64_t h = (n * 2 + static_cast<uint64_t>(from)) * 0x9e3779b97f4a7c15;
    return (h >> 60) < 3 ? (h >> 20) % kSlotBytes : (h >> 20) % kTestInlineBytes;
  };
  auto run = [&](Rank me) {
    Endpoint& link = world[me][1 - me];
    uint64_t sent = 0;
    uint64_t received = 0;
    Deadline deadline(seconds(60));
    while (sent < kMessages || received < kMessages) {
      bool moved = false;
      check(!deadline.passed(), Code::kTimeout, "sent {}, received {}", sent, received);
      if (sent < kMessages && link.completed() + kSlots > sent) {
        std::byte* slot = world[me].arena.data() + (sent % kSlots) * kSlotBytes;
        uint64_t bytes = size_of_message(me, sent + 1);
        fill(slot, bytes, sent + 1);
        if (link.try_send(envelope_of(sent + 1), slot, bytes)) {
          sent++;
          moved = true;
        }
      }
      View view;
      if (received < kMessages && link.try_recv(nullptr, kSlotBytes, &view)) {
        received++;
        moved = true;
        check(view.envelope == envelope_of(received) &&
                  view.bytes == size_of_message(1 - me, received) &&
                  filled(view.data, view.bytes, received),
              Code::kInternal, "message {} is damaged", received);
        link.release();
      }
      if (moved) continue;
      auto since = Clock::now();
      sleep_on(link, seconds(10));
      check(Clock::now() - since < seconds(10), Code::kInternal,
            "slept through what came: sent {}, received {}", sent, received);
    }
    complete(link, kMessages);
  };
  auto other = std::async(std::launch::async, run, 1);
  run(0);
  other.get();
}

TEST(Registry, NamesAreFoundAndTheChosenOnesComeFirst) {
  for (const TransportRow& row : transports()) {
    EXPECT_EQ(find_transport(row.name), &row);
    EXPECT_NE(row.help, "");
  }
  EXPECT_EQ(find_transport("auto"), nullptr);
  EXPECT_EQ(find_transport(""), nullptr);
  EXPECT_EQ(transports().front().name, "shm");
  EXPECT_TRUE(find_transport("tcp")->automatic);
  EXPECT_FALSE(find_transport("loopback")->automatic);
}

}  // namespace
}  // namespace ringcoll
