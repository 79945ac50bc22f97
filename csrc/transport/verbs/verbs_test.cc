// What is particular to RDMA; what every transport does is asked by conformance_test.cc.
#include "transport/verbs/verbs.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/verbs/device_testing.h"
#include "transport/verbs/wire.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;

constexpr size_t kArenaBytes = 4 << 20;

const TransportRow& row() { return *find_transport("verbs"); }

/// Tests that need to break the device.
class Breaking : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RdmaForTests::fake()) GTEST_SKIP() << "a device of the host is not broken on purpose";
  }
  verbs::FakeVerbs& fake() { return *RdmaForTests::fake(); }
};

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(Code::kInternal, "no error");
}

bool says(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

// Sends until the link breaks.
Error break_of(Endpoint& link, const std::byte* data) {
  return error_of([&] {
    Deadline deadline(seconds(20));
    for (uint64_t n = 1; !deadline.passed(); n++) {
      link.try_send(envelope_of(n), data, 1000);
      link.completed();
      sleep_on(link, std::chrono::milliseconds(1));
    }
  });
}

// Also behind messages that nobody expected.
TEST(Verbs, APlaceNamedAheadIsWhereThePayloadGoes) {
  for (uint64_t unexpected : {0, 3}) {
    World world(row(), 2, kArenaBytes);
    for (uint64_t n = 1; n <= unexpected; n++) {
      send(world[0][1], envelope_of(n), &n, sizeof n);
      receive(world[1][0]);
      world[1][0].release();
    }
    constexpr uint64_t kBytes = 1 << 20;
    std::byte* place = world[1].arena.data() + 12345;
    world[1][0].expect(place, kBytes);
    fill(world[0].arena.data(), kBytes, 9);
    send(world[0][1], envelope_of(1), world[0].arena.data(), kBytes);
    auto sender = std::async(std::launch::async, [&] { flush(world[0][1]); });
    View view = receive(world[1][0]);  // it is not offered again
    EXPECT_EQ(view.data, place);
    EXPECT_TRUE(filled(place, kBytes, 9));
    world[1][0].release();
    sender.get();
  }
}

TEST(Verbs, WithoutAPlaceThePayloadLandsInABufferThatIsUsedAgain) {
  World world(row(), 2, kArenaBytes);
  constexpr uint64_t kBytes = 100000;
  const std::byte* first = nullptr;
  for (uint64_t n = 1; n <= 5; n++) {
    auto sender = std::async(std::launch::async, [&] {
      fill(world[0].arena.data(), kBytes, n);
      send(world[0][1], envelope_of(n), world[0].arena.data(), kBytes);
      flush(world[0][1]);
    });
    View view = receive(world[1][0]);
    EXPECT_TRUE(filled(view.data, kBytes, n));
    if (!first) first = view.data;
    EXPECT_EQ(view.data, first);
    world[1][0].release();
    sender.get();
  }
}

// A call that failed has given the caller its memory back: what a peer still sends must not arrive.
// Nor in the arena, which stays registered.
TEST(Verbs, WhatIsRevokedIsNotWritten) {
  constexpr uint64_t kBytes = 1 << 20;
  auto memory = std::make_unique<std::byte[]>(kBytes);
  for (bool in_arena : {true, false}) {
    World world(row(), 2, kArenaBytes);
    std::byte* place = in_arena ? world[1].arena.data() : memory.get();
    Loan loan{memory.get(), kBytes, true};
    for (int call = 0; call < 2; call++) world[1].transport->lend({&loan, 1}, 0);
    if (!in_arena && !loan.granted) GTEST_SKIP() << "this kernel offers no userfaultfd";
    world[1][0].expect(place, kBytes);
    Deadline told(std::chrono::milliseconds(100));
    while (!told.passed()) world[0][1].progress();
    fill(place, kBytes, 1);
    world[1].transport->revoke();
    fill(world[0].arena.data(), kBytes, 2);
    send(world[0][1], envelope_of(1), world[0].arena.data(), kBytes);
    error_of([&] {  // the sender may hear of it, or repeat what it sent for a while
      Deadline tried(std::chrono::milliseconds(300));
      while (!tried.passed()) EXPECT_EQ(world[0][1].completed(), 0u);
    });
    EXPECT_TRUE(filled(place, kBytes, 1));
  }
}

TEST_F(Breaking, AfterARevokeNoLinkWorksAndNothingIsRegistered) {
  World world(row(), 3, kArenaBytes);
  int before = fake().objects_left();
  auto memory = std::make_unique<std::byte[]>(kArenaBytes);
  Loan loan{memory.get(), kArenaBytes, true};
  for (int call = 0; call < 2; call++) world[1].transport->lend({&loan, 1}, 0);
  if (!loan.granted) GTEST_SKIP() << "this kernel offers no userfaultfd";
  EXPECT_EQ(fake().objects_left(), before + 1);
  world[1].transport->revoke();
  EXPECT_EQ(fake().objects_left(), before);
  for (Rank peer : {0, 2}) {
    Error error = error_of([&] { world[1][peer].progress(); });
    EXPECT_EQ(error.code(), Code::kTransport);
    EXPECT_EQ(error.rank(), peer);
    EXPECT_TRUE(says(error, "given up")) << error.what();
  }
  world[1].transport->lend({&loan, 1}, 0);
  EXPECT_FALSE(loan.granted) << "as if it had never come";
}

// As writes of which all are full, or all but the last.
TEST_F(Breaking, AMessageThatIsLongerThanThePortAllowsGoesInParts) {
  constexpr uint32_t kMost = 64 << 10;
  std::vector<verbs::FakeDevice> narrow = {{.ports = {{.max_message_bytes = kMost}}}};
  RdmaForTests::Instead devices(narrow);
  World world(row(), 2, kArenaBytes);
  for (uint64_t bytes : {kMost, kMost + 1, 2 * kMost, 10 * kMost - 1}) {
    fill(world[0].arena.data(), bytes, bytes);
    send(world[0][1], envelope_of(1), world[0].arena.data(), bytes);
    auto sender = std::async(std::launch::async, [&] { flush(world[0][1]); });
    View view = receive(world[1][0], world[1].arena.data(), bytes);
    EXPECT_TRUE(filled(view.data, bytes, bytes)) << bytes;
    world[1][0].release();
    sender.get();
  }
}

TEST_F(Breaking, AFailedWriteNamesStatusPeerAndPort) {
  World world(row(), 2, kArenaBytes);
  fake().fail_completion(3, verbs::Status::kRetryExceeded);
  Error error = break_of(world[0][1], world[0].arena.data());
  EXPECT_EQ(error.code(), Code::kTransport) << error.what();
  EXPECT_EQ(error.rank(), 1);
  for (const char* part : {"retry exceeded", "rank 0 -> 1", "fake0:1"})
    EXPECT_TRUE(says(error, part)) << part << ": " << error.what();
  Error again = error_of([&] { world[0][1].progress(); });
  EXPECT_STREQ(again.what(), error.what()) << "the first cause stays";
}

TEST_F(Breaking, AFatalEventEndsAllLinksOfTheDevice) {
  World world(row(), 3, kArenaBytes);
  fake().raise("fake0", verbs::EventKind::kDeviceFatal);
  for (Rank peer : {1, 2}) {
    Error error = break_of(world[0][peer], world[0].arena.data());
    EXPECT_EQ(error.code(), Code::kTransport) << error.what();
  }
}

TEST_F(Breaking, MemoryThatMayNotBeLockedIsSaidWithTheRemedy) {
  Switchboard board;
  fake().fail(verbs::FakeCall::kRegisterMemory, 1, ENOMEM);
  Error error = error_of([&] { TestRank rank(row(), 0, 2, board, kArenaBytes); });
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_TRUE(says(error, "ibv_reg_mr")) << error.what();
  EXPECT_TRUE(says(error, "lock")) << error.what();
}

TEST_F(Breaking, APathThatLosesPacketsIsFoundBeforeAnythingIsSent) {
  Switchboard board;
  TestRank a(row(), 0, 2, board, 4096), b(row(), 1, 2, board, 4096);
  a.connect(1, b.transport->address());
  b.connect(0, a.transport->address());
  a.each(&Endpoint::try_establish);
  b.each(&Endpoint::try_establish);
  fake().set_loss("fake0", 1, true);
  Error error = error_of([&] {
    for (Deadline deadline(seconds(2)); !a[1].try_prove(deadline);) a.waits.sleep(seconds(1));
  });
  fake().set_loss("fake0", 1, false);
  EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
  EXPECT_TRUE(says(error, "rank 0 -> 1") && says(error, "UDP port 4791")) << error.what();
}

// Beside the arenas: what an endpoint writes from is longer than headers only for what it copies.
TEST_F(Breaking, APairOfRanksPinsLittleMemory) {
  constexpr uint64_t kArena = 1 << 20, kOfAnEndpoint = 300 << 10;
  verbs::FakeDevice device{.memlock_bytes = 2 * (kArena + kOfAnEndpoint)};
  RdmaForTests::Instead small({device});
  World world(row(), 2, kArena);
  std::vector<std::byte> copied(kTestInlineBytes);
  fill(copied.data(), copied.size(), 6);
  send(world[0][1], envelope_of(1), copied.data(), copied.size());
  EXPECT_TRUE(filled(receive(world[1][0]).data, copied.size(), 6));
  std::vector<std::byte> loose(kTestInlineBytes + 1);
  Error error = error_of([&] { world[0][1].try_send(envelope_of(2), loose.data(), loose.size()); });
  EXPECT_TRUE(says(error, "not registered and too long to be copied")) << error.what();
}

// One that comes back in time loses nothing (on_device_test.cc).
TEST_F(Breaking, APortThatStaysDownFailsTheLinksOverIt) {
  RdmaForTests::Instead impatient({verbs::FakeDevice{}}, std::chrono::milliseconds(200));
  World world(row(), 2, kArenaBytes);
  fake().set_link("fake0", 1, false);
  Error error = break_of(world[0][1], world[0].arena.data());
  EXPECT_EQ(error.code(), Code::kTransport) << error.what();
  EXPECT_EQ(error.rank(), 1);
  EXPECT_TRUE(says(error, "retry exceeded") && says(error, "fake0:1")) << error.what();
  fake().set_link("fake0", 1, true);
}

// The second of two long messages needs one write more than the send queue has room for.
TEST_F(Breaking, AMessageWaitsForRoomForAllItsWrites) {
  constexpr uint64_t kMost = 16 << 10;  // of a write
  constexpr uint64_t kFirst = 128 * kMost - 1, kSecond = 127 * kMost - 1;
  RdmaForTests::Instead small({{.ports = {{.max_message_bytes = kMost}}}});
  World world(row(), 2, kArenaBytes);
  Endpoint &here = world[0][1], &there = world[1][0];
  std::byte *from = world[0].arena.data(), *to = world[1].arena.data();
  there.expect(to, kFirst);
  there.expect(to + kFirst, kSecond);
  send(there, envelope_of(1), to, 8);  // behind the places
  receive(here);
  here.release();
  fill(from, kFirst + kSecond, 4);
  fake().set_loss("fake0", 1, true);  // nothing completes
  EXPECT_EQ(here.try_send(envelope_of(1), from, kFirst), 1u);
  EXPECT_EQ(here.try_send(envelope_of(2), from + kFirst, kSecond), 0u);
  fake().set_loss("fake0", 1, false);
  until(here, "send", [&] { return here.try_send(envelope_of(2), from + kFirst, kSecond) == 2; });
  for (uint64_t bytes : {kFirst, kSecond}) {
    EXPECT_EQ(receive(there, nullptr, bytes).bytes, bytes);
    there.release();
  }
  EXPECT_TRUE(filled(to, kFirst + kSecond, 4));
}

// Ranks know each other's addresses from the exchange; then the port gets others, at other indices.
TEST_F(Breaking, ALinkMadeAfterAnAddressHasChangedUsesTheNewOne) {
  Switchboard board;
  TestRank a(row(), 0, 2, board, 4096), b(row(), 1, 2, board, 4096);
  std::string of_a = a.transport->address(), of_b = b.transport->address();
  fake().set_gids("fake0", 1, {{"10.0.0.77"}});
  a.connect(1, of_b);
  b.connect(0, of_a);
  for (auto step : {&Endpoint::try_establish, &Endpoint::try_prove}) {
    a.each(step);
    b.each(step);
  }
  send(a[1], envelope_of(1), a.arena.data(), 100);
  receive(b[0]);
  b[0].release();
  EXPECT_NE(a.transport->address(), of_a);
  fake().set_gids("fake0", 1, verbs::FakePort{}.gids);
}

/// Three ranks of one machine with two devices: 0 and 2 use the first, 1 the second, and the pair
/// of 1 and 2 the second, too.
class TwoPorts : public Breaking {
 protected:
  void SetUp() override {
    Breaking::SetUp();
    if (!IsSkipped()) devices_.emplace(two_devices());
  }
  // Of which two ports may be locked by any user.
  static constexpr size_t kSmallArena = 1 << 20;
  Seats seats_{.machine_of = {0, 0, 0}, .order = {0, 1, 2}};

 private:
  std::optional<RdmaForTests::Instead> devices_;
};

TEST_F(TwoPorts, AreSharedOut) {
  World world(row(), 3, kSmallArena, seats_);
  for (Rank r = 0; r < 3; r++)
    for (Rank other = 0; other < 3; other++)
      EXPECT_EQ(world[r].transport->port_of(other), other == 1 ? "fake1:1" : "fake0:1");
  fake().set_loss("fake1", 1, true);
  send(world[2][0], envelope_of(1), world[2].arena.data(), 1000);
  receive(world[0][2]);
  world[0][2].release();
  // What is lost on the second is no matter of the first's.
  send(world[2][1], envelope_of(1), world[2].arena.data(), 1000);
  View view;
  for (Deadline tried(std::chrono::milliseconds(200)); !tried.passed();)
    EXPECT_FALSE(world[1][2].try_recv(nullptr, UINT64_MAX, &view));
  fake().set_loss("fake1", 1, false);
}

TEST_F(TwoPorts, MemoryIsLentToBoth) {
  World world(row(), 3, kSmallArena, seats_);
  constexpr uint64_t kBytes = 1 << 19;
  auto sent = std::make_unique<std::byte[]>(kBytes);
  Loan loan{sent.get(), kBytes, false};
  for (int call = 0; call < 2; call++) world[2].transport->lend({&loan, 1}, 0);
  if (!loan.granted) GTEST_SKIP() << "this kernel offers no userfaultfd";
  fill(sent.get(), kBytes, 7);
  for (Rank peer : {0, 1}) {
    world[peer][2].expect(world[peer].arena.data(), kBytes);
    send(world[2][peer], envelope_of(1), sent.get(), kBytes);
  }
  for (Rank peer : {0, 1}) {
    flush(world[2][peer]);
    View view = receive(world[peer][2], world[peer].arena.data(), kBytes);
    EXPECT_TRUE(filled(view.data, kBytes, 7)) << peer;
    complete(world[2][peer], 1);
  }
}

// While one link is waited for, what is queued on the others moves, whatever their ports.
TEST_F(TwoPorts, AWaitForOneMovesTheOther) {
  World world(row(), 3, kSmallArena, seats_);
  constexpr uint64_t kBytes = 1 << 18;
  fill(world[2].arena.data(), kBytes, 3);
  send(world[2][1], envelope_of(1), world[2].arena.data(), kBytes);
  EXPECT_TRUE(world[2][1].busy()) << "no place is named yet";
  world[1][2].expect(world[1].arena.data(), kBytes);
  View view;
  until(world[2][0], "wait", [&] { return world[1][2].try_recv(nullptr, kBytes, &view); });
  EXPECT_TRUE(filled(view.data, kBytes, 3));
}

// A port that is opened during a call has what was lent to the call.
TEST_F(TwoPorts, OneThatIsOpenedLaterHasWhatIsLent) {
  Switchboard board;
  auto rank = [&](Rank r) {
    return std::make_unique<TestRank>(row(), r, 3, board, kSmallArena, test_config(), seats_);
  };
  auto zero = rank(0), one = rank(1), two = rank(2);
  auto join = [](TestRank& a, Rank number_a, TestRank& b, Rank number_b) {
    std::string of_a = a.transport->address(), of_b = b.transport->address();
    a.connect(number_b, of_b);
    b.connect(number_a, of_a);
    for (auto step : {&Endpoint::try_establish, &Endpoint::try_prove})
      for (Endpoint* link : {&a[number_b], &b[number_a]})
        until(*link, "set up", [&] { return (link->*step)(Deadline(seconds(20))); });
  };
  join(*zero, 0, *two, 2);
  constexpr uint64_t kBytes = 1 << 19;
  auto sent = std::make_unique<std::byte[]>(kBytes);
  Loan loan{sent.get(), kBytes, false};
  for (int call = 0; call < 2; call++) two->transport->lend({&loan, 1}, 0);
  if (!loan.granted) GTEST_SKIP() << "this kernel offers no userfaultfd";
  join(*one, 1, *two, 2);
  EXPECT_EQ(two->transport->port_of(1), "fake1:1");
  fill(sent.get(), kBytes, 5);
  (*one)[2].expect(one->arena.data(), kBytes);
  send((*two)[1], envelope_of(1), sent.get(), kBytes);
  flush((*two)[1]);
  EXPECT_TRUE(filled(receive((*one)[2], one->arena.data(), kBytes).data, kBytes, 5));
}

TEST_F(TwoPorts, AKnobNamesThoseThatAreUsed) {
  Switchboard board;
  Config config = test_config();
  config.devices = "fake1,fake7";
  TestRank rank(row(), 0, 3, board, kSmallArena, config, seats_);
  EXPECT_EQ(rank.transport->port_of(0), "fake1:1");
  config.devices = "fake7,fake8";
  Error error = error_of([&] { TestRank other(row(), 1, 3, board, kSmallArena, config, seats_); });
  EXPECT_TRUE(says(error, "fake7: RINGCOLL_DEVICES names it")) << error.what();
  EXPECT_TRUE(says(error, "there are: fake0, fake1")) << error.what();
}

TEST(VerbsReach, SaysWhyNot) {
  World world(row(), 2, 8192);
  auto reason = [&](const std::function<void(rdma::Address&)>& change) {
    std::string text = world[1].transport->address();
    rdma::Address address;
    std::memcpy(&address, text.data(), sizeof address);
    change(address);
    std::memcpy(text.data(), &address, sizeof address);
    Switchboard board;
    TestRank rank(row(), 0, 2, board, 8192);
    return rank.transport->reach(1, text);
  };
  auto contains = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_TRUE(contains(reason([](auto& a) { a.version++; }), "version"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.rank = 0; }), "not rank 1"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.slot_bytes++; }), "INLINE_BYTES"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.link_layer ^= 3; }), "InfiniBand"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.gid.bytes[0] = 0x20; }), "IPv6"));
}

}  // namespace
}  // namespace ringcoll
