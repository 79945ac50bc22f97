// What messages that come in any order need of a transport, asked of every row of the registry: to
// see what comes before it is taken, and to sleep until something comes on any of several links.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "transport/verbs/device_testing.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr size_t kOwnBytes = 1 << 20;
constexpr size_t kExtentBytes = 1 << 20;
constexpr uint64_t kSizes[] = {
    0, 1, kTestInlineBytes - 1, kTestInlineBytes, kTestInlineBytes + 1, 4096, 70001, 300000};

// Those that know whether a peer has connected. Others may always say so.
bool knows_callers(std::string_view name) {
  constexpr std::string_view kNames[] = {"loopback", "shm"};
  return std::ranges::count(kNames, name) > 0;
}

class Messages : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    Probe probe = row().probe(test_config());
    if (!probe.usable) GTEST_SKIP() << row().name << ": " << probe.detail;
  }
  const TransportRow& row() const { return *find_transport(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Transports, Messages, ::testing::ValuesIn(testing::transport_names()),
                         [](const auto& info) { return std::string(info.param); });

struct Peeked {
  Envelope envelope;
  uint64_t bytes = UINT64_MAX;
};
Peeked peek(Endpoint& link) {
  Peeked next;
  until(link, "peek", [&] { return link.try_peek(&next.envelope, &next.bytes); });
  return next;
}

// However often it is looked at, and while others come behind it.
TEST_P(Messages, AreSeenBeforeTheyAreTaken) {
  World world(row(), 2, kOwnBytes);
  std::vector<std::byte> place(400000);
  auto sender = std::async(std::launch::async, [&] {
    std::byte* data = world[0].arena.data();
    for (uint64_t n = 1; n <= std::size(kSizes); n++) {
      fill(data, kSizes[n - 1], n);
      send(world[0][1], envelope_of(n), data, kSizes[n - 1]);
      complete(world[0][1], n);
    }
  });
  for (uint64_t n = 1; n <= std::size(kSizes); n++) {
    uint64_t bytes = kSizes[n - 1];
    for (int i = 0; i < 3; i++) {
      Peeked next = peek(world[1][0]);
      ASSERT_EQ(next.envelope, envelope_of(n));
      ASSERT_EQ(next.bytes, bytes);
    }
    View view = receive(world[1][0], place.data(), bytes);
    EXPECT_EQ(view.envelope, envelope_of(n));
    EXPECT_EQ(view.bytes, bytes);
    EXPECT_TRUE(filled(view.data, bytes, n)) << bytes;
    world[1][0].release();
  }
  sender.get();
  Peeked none;
  EXPECT_FALSE(world[1][0].try_peek(&none.envelope, &none.bytes));
  EXPECT_EQ(none.bytes, UINT64_MAX);
}

// The next is seen while the view of the one before is out.
TEST_P(Messages, AreSeenBehindOneThatIsNotReleased) {
  World world(row(), 2, kOwnBytes);
  for (uint64_t n = 1; n <= 3; n++) send(world[0][1], envelope_of(n), "abc", n);
  for (uint64_t n = 1; n <= 3; n++) {
    EXPECT_EQ(peek(world[1][0]).bytes, n);
    EXPECT_EQ(receive(world[1][0]).envelope, envelope_of(n));
  }
  for (uint64_t n = 1; n <= 3; n++) world[1][0].release();
}

TEST_P(Messages, GoFromAnyMemoryWhereTheTransportSaysSo) {
  World world(row(), 2, kOwnBytes);
  if (!world[0].transport->sends_from_anywhere()) return;
  std::vector<std::byte> data(300000), place(300000);
  fill(data.data(), data.size(), 3);
  auto sender = std::async(std::launch::async, [&] {
    send(world[0][1], envelope_of(1), data.data(), data.size());
    complete(world[0][1], 1);
  });
  EXPECT_TRUE(filled(receive(world[1][0], place.data(), place.size()).data, data.size(), 3));
  world[1][0].release();
  sender.get();
}

/// A part whose ranks sleep.
struct Sleepers : PartWorld {
  Sleepers(World& world, const std::vector<Rank>& members, bool connected = true)
      : PartWorld(world, members, kOwnBytes, kExtentBytes, connected) {}
  void connect_one(Rank rank, Rank peer) {
    (*this)[rank].connect(peer, (*this)[peer].transport->address());
  }
  /// Until something may be ready on any link of the rank, or `called`. False: nothing woke it.
  bool sleep(Rank rank, const std::function<bool()>& called = {}) {
    Deadline limit(seconds(20));
    (*this)[rank].waits.sleep(limit.left(), called);
    return !limit.passed();
  }
};

std::unique_ptr<World> world_of(const TransportRow& row, Rank size) {
  return std::make_unique<World>(row, size, kOwnBytes + kExtentBytes, Seats{}, kOwnBytes);
}

// What comes on any link ends the sleep, be it short, long, or only the room to send.
TEST_P(Messages, WakeWhoWaitsForAnyLink) {
  constexpr uint64_t kMessages = 200;
  auto world = world_of(row(), 4);
  Sleepers part(*world, {0, 3, 1});
  std::vector<std::future<void>> senders;
  for (Rank from : {1, 2})
    senders.push_back(std::async(std::launch::async, [&, from] {
      std::byte* data = part[from].extent.data();
      fill(data, 5000, static_cast<uint64_t>(from));
      for (uint64_t n = 1; n <= kMessages; n++) {
        Endpoint& link = part[from][0];
        uint64_t bytes = n % 3 == 0 ? 5000 : 8, number = 0;
        while (!(number = link.try_send(envelope_of(n), data, bytes)))
          ASSERT_TRUE(part.sleep(from));
        while (n % 7 == 0 && link.completed() < number) ASSERT_TRUE(part.sleep(from));
        if (n % 20 == 0) std::this_thread::sleep_for(milliseconds(1));
      }
      for (Endpoint& link = part[from][0]; link.busy();) link.progress();
    }));
  std::array<uint64_t, 3> received{};
  std::vector<std::byte> place(5000);
  while (received[1] + received[2] < 2 * kMessages) {
    bool moved = false;
    for (Rank from : {1, 2}) {
      Peeked next;
      View view;
      if (!part[0][from].try_peek(&next.envelope, &next.bytes)) continue;
      if (!part[0][from].try_recv(place.data(), next.bytes, &view)) continue;
      ASSERT_EQ(view.envelope, envelope_of(++received[static_cast<size_t>(from)]));
      ASSERT_TRUE(filled(view.data, view.bytes, static_cast<uint64_t>(from)));
      part[0][from].release();
      moved = true;
    }
    if (!moved) {
      ASSERT_TRUE(part.sleep(0));
    }
  }
  for (auto& sender : senders) sender.get();
}

TEST_P(Messages, LeaveASleeperAsleepWhoHasSeenThem) {
  auto world = world_of(row(), 2);
  Sleepers part(*world, {0, 1});
  send(part[1][0], envelope_of(1), "x", 1);
  peek(part[0][1]);
  receive(part[0][1]);
  part[0][1].release();
  View view;
  int slept = 0;
  for (int turn = 0; turn < 10; turn++) {
    EXPECT_FALSE(part[0][1].try_recv(nullptr, 100, &view));
    Deadline limit(milliseconds(2));
    part[0].waits.sleep(limit.left());
    slept += limit.passed();
  }
  EXPECT_GE(slept, 5);
}

TEST_P(Messages, ASleepEndsWhenItIsWoken) {
  auto world = world_of(row(), 2);
  Sleepers part(*world, {0, 1});
  for (int turn = 0; turn < 20; turn++) {
    auto ringer = std::async(std::launch::async, [&] { part[0].waits.wake(); });
    View view;
    EXPECT_FALSE(part[0][1].try_recv(nullptr, 10, &view));
    EXPECT_TRUE(part.sleep(0));
    ringer.get();
  }
}

// Whoever connects first is seen by the other, asleep or not, who has only to connect, too.
TEST_P(Messages, APeerThatConnectsIsSeen) {
  if (row().link == LinkClass::kNetwork) return;  // its connection is
  auto world = world_of(row(), 3);
  for (Rank first : {0, 1}) {
    Sleepers part(*world, {2, 0}, false);
    Rank second = 1 - first;
    part[second].transport->reach(first, part[first].transport->address());
    if (knows_callers(row().name)) {
      EXPECT_FALSE(part[second].transport->connected_by(first));
    }
    auto caller = std::async(std::launch::async, [&] {
      part.connect_one(first, second);
      send(part[first][second], envelope_of(7), "hello", 5);
    });
    auto called = [&] { return part[second].transport->connected_by(first); };
    while (!called()) ASSERT_TRUE(part.sleep(second, called));
    part.connect_one(second, first);
    Peeked next;
    while (!part[second][first].try_peek(&next.envelope, &next.bytes))
      ASSERT_TRUE(part.sleep(second));
    EXPECT_EQ(receive(part[second][first]).bytes, 5u);
    part[second][first].release();
    caller.get();
  }
}

}  // namespace
}  // namespace ringcoll
