// Memory of the callers': lent, read, and given back, and what long messages take besides.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <vector>

#include "p2p/courier.h"
#include "p2p/couriers_testing.h"
#include "shm/peer_memory_testing.h"

namespace ringcoll {
namespace {

using testing::Behaviour;
using testing::FakeWorld;
using testing::fill;
using testing::kCalm;
using testing::kSmall;
using testing::Letter;
using testing::Ranks;
using Stage = Transfer::Stage;

const Behaviour kLending = [] {
  Behaviour lends = kCalm;
  lends.takes_lent = true;
  return lends;
}();

const Behaviour kRegistering = [] {
  Behaviour registers = kCalm;
  registers.reads_peer = false;
  registers.registers = true;
  return registers;
}();

/// At rank 1; it has not ended.
void expect_lost(Ranks& ranks, const Letter& receive) {
  EXPECT_FALSE(receive.over);
  ASSERT_NE(ranks.couriers[1]->trouble_of(receive.transfer), nullptr);
  EXPECT_EQ(ranks.couriers[1]->trouble_of(receive.transfer)->code(), Code::kPeerLost);
}

/// Sends messages of that many bytes until one has been lent.
void send_until_lent(Ranks& ranks, uint64_t bytes) {
  for (int i = 0; i < 1000 && ranks.world.lent() == 0; i++) {
    Letter& receive = ranks.receive(1, 0, 1, bytes);
    Letter& send = ranks.send(0, 1, 1, bytes);
    while (!receive.over || !send.over) ranks.advance_one();
    ASSERT_EQ(receive.memory, send.memory) << i;
  }
}

// Both ways have their turns to be timed.
TEST(Courier, AShortMessageMayBeReadWhereItLies) {
  for (bool small : {true, false}) {
    Ranks ranks(2, kLending, 1);
    send_until_lent(ranks, kSmall.small_bytes + !small);
    EXPECT_EQ(ranks.world.lent() > 0, !small) << "a small one ends before it has been read";
  }
  Ranks ranks(2, kCalm, 1);
  send_until_lent(ranks, kSmall.short_bytes);
  EXPECT_EQ(ranks.world.lent(), 0) << "which the peer does not take";
}

TEST(Courier, AShortMessageWhoseMemoryIsTheCallersAgainIsNone) {
  Ranks ranks(2, kLending, 1);
  send_until_lent(ranks, kSmall.short_bytes);
  int before = ranks.world.lent();
  Letter& receive = ranks.receive(1, 0, 1, kSmall.short_bytes);
  Letter& send = ranks.send(0, 1, 1, kSmall.short_bytes);
  ranks.couriers[0]->advance_thoroughly();
  ASSERT_GT(ranks.world.lent(), before);
  ranks.couriers[0]->give_up();
  std::ranges::fill(send.memory, std::byte{0xee});
  ranks.settle();
  expect_lost(ranks, receive);
}

TEST(Courier, ALongMessageThatADeviceTakesIsNotCopied) {
  Ranks ranks(2, kRegistering, 1);
  Letter& receive = ranks.receive(1, 0, 1, 6000);
  Letter& send = ranks.send(0, 1, 1, 5000);
  ranks.settle();
  ASSERT_TRUE(send.over && receive.over);
  EXPECT_TRUE(std::equal(send.memory.begin(), send.memory.end(), receive.memory.begin()));
  EXPECT_EQ(ranks.world.lent(), 13) << "stretches of 400 bytes";
  EXPECT_EQ(ranks.couriers[0]->counts().packed_bytes, 0u);
  EXPECT_EQ(ranks.couriers[1]->counts().unpacked_bytes, 0u);
  // What is short is packed, and copied to its receive.
  ranks.receive(1, 0, 2, 100);
  ranks.send(0, 1, 2, 100);
  ranks.settle();
  EXPECT_EQ(ranks.couriers[0]->counts().packed_bytes, 100u);
  EXPECT_EQ(ranks.couriers[1]->counts().unpacked_bytes, 100u);
}

TEST(Courier, WhatADeviceHasNotTakenBeforeTheSenderFailedIsNoMessage) {
  Ranks ranks(2, kRegistering, 1);
  Letter& receive = ranks.receive(1, 0, 1, 5000);
  Letter& send = ranks.send(0, 1, 1, 5000);
  for (int turn = 0; ranks.world.lent() == 0; turn++) {
    ASSERT_LT(turn, 20);
    ranks.couriers[1]->advance_thoroughly();
    ranks.couriers[0]->advance_thoroughly();
  }
  ranks.couriers[0]->give_up();
  std::ranges::fill(send.memory, std::byte{0xee});
  ranks.settle();
  expect_lost(ranks, receive);
}

TEST(Courier, WhatPeersCannotReadIsSentToThem) {
  Ranks ranks(2, kLending, 1);
  send_until_lent(ranks, kSmall.short_bytes);
  int before = ranks.world.lent();
  for (uint64_t bytes : {kSmall.short_bytes, 3 * kSmall.read_bytes}) {
    Letter& receive = ranks.receive(1, 0, 2, bytes);
    Letter send;
    send.peer = 1;
    send.tag = 2;
    send.data = testing::mapped_as_by_a_driver();
    send.bytes = bytes;
    ASSERT_NE(send.data, nullptr);
    ranks.couriers[0]->begin(&send);
    ranks.settle();
    ASSERT_TRUE(send.over && receive.over);
    EXPECT_FALSE(send.error || receive.error);
    EXPECT_EQ(receive.received.bytes, bytes);
  }
  EXPECT_EQ(ranks.world.lent(), before);
  EXPECT_EQ(ranks.couriers[1]->counts().read, 0u);
}

// One is read by the peer and the other one sent to it, at the same time.
TEST(Courier, LongMessagesThatPeersCanAndCannotReadAreNotMixedUp) {
  std::byte* driver = testing::mapped_as_by_a_driver();
  ASSERT_NE(driver, nullptr);
  std::span fixed(driver + 2048, 1500);  // no clock is there
  for (const Behaviour& behaviour : testing::behaviours()) {
    if (!behaviour.reads_peer) continue;
    for (uint64_t seed = 0; seed < 100; seed++) {
      SCOPED_TRACE(fmt::format("{}, seed {}", behaviour.name, seed));
      Ranks ranks(2, behaviour, seed);
      Letter& receive = ranks.receive(1, 0, 1, 5000);
      Letter& unreadable_receive = ranks.receive(1, 0, 2, fixed.size());
      Letter unreadable;
      unreadable.peer = 1;
      unreadable.tag = 2;
      unreadable.data = fixed.data();
      unreadable.bytes = fixed.size();
      if (seed % 2 == 0) ranks.couriers[0]->begin(&unreadable);
      Letter& send = ranks.send(0, 1, 1, 5000);
      if (seed % 2 == 1) ranks.couriers[0]->begin(&unreadable);
      ranks.settle();
      ASSERT_TRUE(send.over && receive.over);
      ASSERT_TRUE(unreadable.over && unreadable_receive.over);
      ASSERT_EQ(receive.memory, send.memory);
      ASSERT_TRUE(std::ranges::equal(unreadable_receive.memory, fixed));
    }
  }
}

TEST(Courier, WhatIsReadFromMemoryThatIsTheCallersAgainIsNoMessage) {
  Ranks ranks(2, kCalm, 1);
  Letter& send = ranks.send(0, 1, 1, 400);
  ranks.settle();
  ranks.couriers[0]->give_up();
  std::ranges::fill(send.memory, std::byte{0xee});
  Letter& receive = ranks.receive(1, 0, 1, 400);
  ranks.settle();
  expect_lost(ranks, receive);
}

// In the middle, too: each piece is looked at before it counts.
TEST(Courier, WhatWasNotReadBeforeTheSenderFailedIsNoMessage) {
  Ranks ranks(2, kCalm, 1);
  Letter& send = ranks.send(0, 1, 1, 4000);
  Letter& receive = ranks.receive(1, 0, 1, 4000);
  ranks.couriers[0]->advance_thoroughly();
  ranks.couriers[1]->advance_thoroughly();
  EXPECT_EQ(receive.moved, kSmall.read_bytes);
  ranks.couriers[0]->give_up();
  std::ranges::fill(send.memory, std::byte{0xee});
  ranks.settle();
  EXPECT_FALSE(receive.over);
  EXPECT_NE(ranks.couriers[1]->trouble_of(receive.transfer), nullptr);
  EXPECT_EQ(receive.moved, kSmall.read_bytes);
}

// What was sent is what it was, and needs the sender no more.
TEST(Courier, HelpThatHasBeenSentOutlivesItsSender) {
  Ranks ranks(2, kCalm, 1);
  Letter& send = ranks.send(0, 1, 1, kSmall.read_bytes + kSmall.staged_bytes);
  Letter& receive = ranks.receive(1, 0, 1, 4000);
  ranks.couriers[0]->advance_thoroughly();  // announces
  ranks.couriers[1]->advance_thoroughly();  // reads a piece
  ranks.couriers[0]->advance_thoroughly();  // helps
  auto content = send.memory;
  ranks.couriers[0]->give_up();
  std::ranges::fill(send.memory, std::byte{0xee});
  ranks.couriers[1]->advance_thoroughly();
  ASSERT_TRUE(receive.over);
  EXPECT_FALSE(receive.error);
  EXPECT_TRUE(std::equal(content.begin(), content.end(), receive.memory.begin()));
}

// Which messages are long is the sender's to say.
TEST(Courier, AMessageOfOneByteThatIsReadIsCountedAsRead) {
  Courier::Limits none_short = kSmall;
  none_short.short_bytes = 0;
  Ranks ranks(2, kCalm, 1, none_short);
  Letter& send = ranks.send(0, 1, 1, 1);
  Letter& receive = ranks.receive(1, 0, 1, 1);
  ranks.settle();
  EXPECT_TRUE(send.over && receive.over);
  EXPECT_EQ(receive.memory, send.memory);
  EXPECT_EQ(receive.moved + receive.helped, 1u);
  EXPECT_EQ(ranks.couriers[1]->counts().read, receive.moved);
}

TEST(Courier, MemoryThatIsNotThereAnyMoreIsALostPeer) {
  Ranks ranks(2, kCalm, 1);
  ranks.send(0, 1, 1, 400);
  ranks.settle();
  ranks.world.forget_memory_of(0);
  Letter& receive = ranks.receive(1, 0, 1, 400);
  ranks.settle();
  ASSERT_NE(ranks.couriers[1]->trouble_of(receive.transfer), nullptr);
  EXPECT_EQ(ranks.couriers[1]->trouble_of(receive.transfer)->rank(), 0);
}

TEST(Courier, WhoReadsIsHelpedFromTheEnd) {
  Ranks ranks(2, kCalm, 1);
  Letter& send = ranks.send(0, 1, 1, 5000);
  Letter& receive = ranks.receive(1, 0, 1, 5000);
  for (int turn = 0; !receive.over; turn++) {
    ASSERT_LT(turn, 20);
    for (auto& courier : ranks.couriers) courier->advance_thoroughly();
  }
  EXPECT_EQ(receive.memory, send.memory);
  EXPECT_GT(receive.helped, receive.moved) << "five stretches come with each piece";
  EXPECT_GE(receive.helped + receive.moved, 5000u);
  ranks.settle();
  EXPECT_TRUE(send.over);
  EXPECT_EQ(ranks.couriers[1]->counts().helped, 1u);
  EXPECT_EQ(ranks.couriers[1]->counts().read, 1u);
}

TEST(Courier, WhoeverHasNoHelpReadsMoreAtATime) {
  Ranks ranks(2, kCalm, 1);
  Letter& send = ranks.send(0, 1, 1, 5000);
  Letter& receive = ranks.receive(1, 0, 1, 5000);
  ranks.couriers[0]->advance_thoroughly();
  std::vector<uint64_t> moved;
  for (int turn = 0; !receive.over; turn++) {
    ASSERT_LT(turn, 20);
    ranks.couriers[1]->advance_thoroughly();
    moved.push_back(receive.moved);
  }
  EXPECT_EQ(std::vector<uint64_t>(moved.begin(), moved.begin() + 4),
            (std::vector<uint64_t>{170, 340, 680, 1080}));
  EXPECT_EQ(receive.memory, send.memory);
  EXPECT_EQ(ranks.couriers[1]->counts().helped, 0u);
  ranks.settle();
  EXPECT_TRUE(send.over);
  EXPECT_TRUE(ranks.couriers[0]->quiet());
}

// Both ways have their turns to be timed.
TEST(Courier, ALongMessageMayBeReadWithoutHelp) {
  Ranks ranks(2, kCalm, 1);
  auto read_next = [&] {
    Letter& send = ranks.send(0, 1, 1, 5000);
    Letter& receive = ranks.receive(1, 0, 1, 5000);
    for (int turn = 0; turn < 20 && !receive.over; turn++)
      for (auto& courier : ranks.couriers) courier->advance_thoroughly();
    EXPECT_TRUE(receive.over);
    ranks.settle();
    EXPECT_EQ(receive.memory, send.memory);
    return receive.helped == 0;
  };
  int alone = 0;
  for (int i = 0; i < 200 && alone == 0; i++) alone += read_next();
  EXPECT_EQ(alone, 1);
  EXPECT_GE(ranks.couriers[1]->counts().helped, FasterWay::kTrials);
}

/// A long message that is announced, and a shorter one behind it.
struct LongBeforeShort : ::testing::Test {
  LongBeforeShort() {
    ranks.send(0, 1, 1, 5000);
    ranks.send(0, 1, 2, 300);
    ranks.couriers[0]->advance_thoroughly();
  }
  Ranks ranks{2, kCalm, 1};
  Letter& first = ranks.receive(1, 0, 1, 5000);
  Letter& second = ranks.receive(1, 0, 2, 300);
};

TEST_F(LongBeforeShort, TakeTurns) {
  for (int turn = 0; !second.over; turn++) {
    ASSERT_LT(turn, 20);
    ranks.couriers[1]->advance_thoroughly();
  }
  EXPECT_FALSE(first.over);
}

// By which the way to read is chosen; in a window of messages most of their time is that of others.
TEST_F(LongBeforeShort, WhatWaitsForTheOtherIsNotTimed) {
  ranks.couriers[1]->advance_thoroughly();
  ASSERT_GT(first.moved, 0u);
  ASSERT_EQ(second.moved, 0u);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ranks.settle();
  ASSERT_TRUE(first.over && second.over);
  EXPECT_GE(first.took, std::chrono::milliseconds(200));
  EXPECT_GT(second.took, Duration::zero());
  EXPECT_LT(second.took, std::chrono::milliseconds(200));
}

/// Rank 0 is spoken for by hand, and rank 1 reads its memory.
class HandMade : public ::testing::Test {
 protected:
  HandMade() : world(2, kCalm, 1), courier(world.channels(1), kSmall, [](Transfer*) {}) {
    EXPECT_TRUE(world.channels(0).try_open(1));
    say({.word = Word::kSeal, .bytes = seal.value(), .where = seal.address()});
    receive.receives = true;
    receive.peer = 0;
    receive.data = room.data();
    receive.bytes = room.size();
  }
  void say(const Head& head, uint64_t bytes = 0) {
    ASSERT_GT(world.channels(0)[1].try_send(Envelope::of(head), memory.data(), bytes), 0u);
  }
  void announce(uint64_t bytes) {
    say({.word = Word::kAnnounce,
         .bytes = bytes,
         .where = reinterpret_cast<uint64_t>(memory.data())});
  }
  /// What the receiver says of a stretch.
  bool is_corrupt(const Head& head, uint64_t bytes) {
    say(head, bytes);
    courier.advance_thoroughly();
    return courier.broke(0);
  }

  FakeWorld world;
  Seal seal;
  std::vector<std::byte> memory = std::vector<std::byte>(500, std::byte{7});
  std::vector<std::byte> room = std::vector<std::byte>(500);
  Courier courier;
  Transfer receive;
};

TEST_F(HandMade, HelpThatComesTooLateIsDropped) {
  announce(500);
  courier.begin(&receive);
  while (receive.stage != Stage::kOver) ASSERT_TRUE(courier.advance_thoroughly());
  EXPECT_EQ(room, memory);
  room.assign(500, std::byte{1});  // it is the caller's again
  EXPECT_FALSE(is_corrupt({.word = Word::kHelping, .bytes = 440, .where = 1}, 60));
  EXPECT_FALSE(is_corrupt({.word = Word::kHelping, .bytes = 400, .where = 1}, 40));
  EXPECT_EQ(room, std::vector<std::byte>(500, std::byte{1}));
}

TEST_F(HandMade, HelpThatGoesBeyondWhatIsReadIsCopiedAsFarAsItIsNew) {
  announce(200);
  courier.begin(&receive);
  courier.advance_thoroughly();
  ASSERT_EQ(receive.moved, kSmall.read_bytes);
  memory.assign(500, std::byte{9});
  EXPECT_FALSE(is_corrupt({.word = Word::kHelping, .bytes = 140, .where = 1}, 60));
  EXPECT_EQ(receive.stage, Stage::kOver);
  EXPECT_EQ(room[169], std::byte{7});
  EXPECT_EQ(room[170], std::byte{9});
  EXPECT_EQ(room[199], std::byte{9});
  EXPECT_EQ(room[200], std::byte{0});
}

TEST_F(HandMade, HelpWithWhatWasNotAnnouncedIsCorrupt) {
  announce(500);
  courier.begin(&receive);
  EXPECT_TRUE(is_corrupt({.word = Word::kHelping, .bytes = 440, .where = 2}, 60));
}

TEST_F(HandMade, HelpThatIsNotTheNextFromTheEndIsCorrupt) {
  announce(500);
  courier.begin(&receive);
  EXPECT_TRUE(is_corrupt({.word = Word::kHelping, .bytes = 430, .where = 1}, 60));
}

TEST_F(HandMade, HelpBeyondTheEndIsCorrupt) {
  announce(500);
  courier.begin(&receive);
  EXPECT_TRUE(is_corrupt({.word = Word::kHelping, .bytes = ~uint64_t{0} - 9, .where = 1}, 60));
}

}  // namespace
}  // namespace ringcoll
