// What is particular to parts over RDMA: what they have in common with the whole, and what not.
// What every transport's parts do is asked by ../part_test.cc.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include "base/error.h"
#include "transport/verbs/device_testing.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;

const TransportRow& row() { return *find_transport("verbs"); }

constexpr size_t kOwnBytes = 256 << 10;
constexpr size_t kExtentBytes = 128 << 10;

/// Tests that ask the device, or break it.
class RdmaPart : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RdmaForTests::fake()) GTEST_SKIP() << "a device of the host is not broken on purpose";
  }
  verbs::FakeVerbs& fake() { return *RdmaForTests::fake(); }
};

void expect_message(Endpoint& from, Endpoint& to) {
  send(from, envelope_of(1), "x", 1);
  EXPECT_EQ(receive(to).bytes, 1u);
  to.release();
}

// Neither the whole nor a part that has no link pins memory of parts.
TEST_F(RdmaPart, RegistersItsExtentFromItsFirstLinkOn) {
  constexpr size_t kArena = size_t{1} << 30;
  std::vector<verbs::FakeDevice> limited = {{.memlock_bytes = 16 << 20}};
  RdmaForTests::Instead devices(limited);
  World world(row(), 3, kArena, {}, kOwnBytes);
  int before = fake().objects_left();
  uint64_t regions = fake().counters().regions_made;
  {
    PartWorld part(world, {2, 0}, kArena - kExtentBytes, kExtentBytes, false);
    EXPECT_EQ(fake().objects_left(), before);
    part.connect();
    constexpr uint64_t kRegions = 3;  // the extent, and the boxes of the pair
    EXPECT_EQ(fake().counters().regions_made - regions, 2 * kRegions);
    std::byte* data = part[0].extent.data();
    fill(data, kExtentBytes, 3);
    part[1][0].expect(part[1].extent.data(), kExtentBytes);
    send(part[0][1], envelope_of(1), data, kExtentBytes);
    flush(part[0][1]);
    EXPECT_EQ(receive(part[1][0]).data, part[1].extent.data());
    EXPECT_TRUE(filled(part[1].extent.data(), kExtentBytes, 3));
    EXPECT_THROW(part[0][1].try_send({}, world[2].arena.data(), kExtentBytes), Error);
    EXPECT_THROW(world[2][0].try_send({}, data, kExtentBytes), Error);
  }
  EXPECT_EQ(fake().objects_left(), before);
}

TEST_F(RdmaPart, UsesThePortsOfTheWhole) {
  RdmaForTests::Instead devices(two_devices());
  Seats seats{.machine_of = {0, 0, 0}, .order = {0, 1, 2}};
  World world(row(), 3, kOwnBytes + kExtentBytes, seats, kOwnBytes);
  PartWorld part(world, {2, 1, 0}, kOwnBytes, kExtentBytes);
  for (Rank r = 0; r < 3; r++) {
    EXPECT_EQ(part[r].transport->port_of(0), world[0].transport->port_of(2));
    EXPECT_EQ(part[r].transport->port_of(1), "fake1:1");
  }
  fake().set_loss("fake1", 1, true);
  expect_message(part[2][0], part[0][2]);
  send(part[0][1], envelope_of(1), "x", 1);
  View view;
  for (Deadline tried(std::chrono::milliseconds(100)); !tried.passed();)
    EXPECT_FALSE(part[1][0].try_recv(nullptr, UINT64_MAX, &view)) << "it goes by the second";
  fake().set_loss("fake1", 1, false);
}

TEST_F(RdmaPart, OfAPeerThatTheWholeCannotReachSaysSo) {
  Switchboard board;
  Config other = test_config();
  other.inline_bytes = 16 << 10;
  TestRank here(row(), 0, 2, board, kOwnBytes), there(row(), 1, 2, board, kOwnBytes, other);
  EXPECT_NE(here.transport->reach(1, there.transport->address()), "");
  PartRank mine(here, 0, {0, 1}, board, {}), theirs(there, 1, {0, 1}, board, {});
  EXPECT_EQ(mine.transport->reach(1, theirs.transport->address()), "its ports are out of reach");
}

TEST_F(RdmaPart, HearsThatTheDeviceIsLost) {
  World world(row(), 2, kOwnBytes + kExtentBytes, {}, kOwnBytes);
  PartWorld part(world, {1, 0}, kOwnBytes, kExtentBytes);
  fake().raise("fake0", verbs::EventKind::kDeviceFatal);
  for (Endpoint* link : {&world[0][1], &part[0][1]}) {
    std::string why;
    try {
      for (Deadline deadline(seconds(20)); !deadline.passed(); link->progress())
        sleep_on(*link, std::chrono::milliseconds(1));
    } catch (const Error& error) {
      why = error.what();
    }
    EXPECT_NE(why, "");
  }
}

TEST_F(RdmaPart, RevokedItStopsItsOwnLinksAlone) {
  World world(row(), 2, kOwnBytes + 2 * kExtentBytes, {}, kOwnBytes);
  PartWorld part(world, {1, 0}, kOwnBytes, kExtentBytes);
  PartWorld other(world, {1, 0}, kOwnBytes + kExtentBytes, kExtentBytes);
  part[0].transport->revoke();
  EXPECT_THROW(part[0][1].progress(), Error);
  expect_message(other[0][1], other[1][0]);
  expect_message(world[0][1], world[1][0]);
}

// A part that is made after the port's address has changed tells peers the new one.
TEST_F(RdmaPart, MadeAfterAnAddressHasChangedUsesTheNewOne) {
  World world(row(), 2, kOwnBytes + kExtentBytes, {}, kOwnBytes);
  fake().set_gids("fake0", 1, {{"10.0.0.77"}});
  PartWorld part(world, {1, 0}, kOwnBytes, kExtentBytes);
  expect_message(part[0][1], part[1][0]);
  fake().set_gids("fake0", 1, verbs::FakePort{}.gids);
}

}  // namespace
}  // namespace ringcoll
