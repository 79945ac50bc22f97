// Couriers of several ranks in one thread, which are advanced in random order over channels that
// put off what they can.
#include "p2p/courier.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "p2p/channels_testing.h"
#include "shm/peer_memory_testing.h"

namespace ringcoll {
namespace {

using testing::Behaviour;
using testing::FakeWorld;
using Stage = Transfer::Stage;

// So small that stories meet every limit.
constexpr Courier::Limits kSmall{.short_bytes = 100,
                                 .small_bytes = 80,
                                 .kept_bytes = 1000,
                                 .stretch_bytes = 150,
                                 .staged_bytes = 130,
                                 .read_bytes = 170,
                                 .most_read_bytes = 400};

const Behaviour kCalm = testing::behaviours()[4];
const Behaviour kLending = [] {
  Behaviour lends = kCalm;
  lends.takes_lent = true;
  return lends;
}();

/// A transfer with memory of its own.
struct Letter : Transfer {
  Transfer& transfer = *this;
  std::vector<std::byte> memory;
  Rank rank = 0;       // whose it is
  uint64_t order = 0;  // among those of this rank
  bool over = false;
};

/// Content that says which message it is.
void fill(std::vector<std::byte>& memory, Rank from, uint64_t order) {
  for (size_t i = 0; i < memory.size(); i++)
    memory[i] = static_cast<std::byte>(from * 131 + order * 17 + i * 7);
}

class Ranks {
 public:
  Ranks(Rank size, const Behaviour& behaviour, uint64_t seed, Courier::Limits limits = kSmall)
      : world(size, behaviour, seed), random(seed) {
    for (Rank rank = 0; rank < size; rank++)
      couriers.push_back(std::make_unique<Courier>(
          world.channels(rank), limits, [](Transfer* transfer) { owner(transfer).over = true; }));
  }

  Letter& send(Rank from, Rank to, int32_t tag, uint64_t bytes) {
    Letter& letter = make(from, false, to, tag, bytes);
    fill(letter.memory, from, letter.order);
    couriers[from]->begin(&letter.transfer);
    return letter;
  }
  Letter& receive(Rank at, Rank from, int32_t tag, uint64_t room) {
    Letter& letter = make(at, true, from, tag, room);
    couriers[at]->begin(&letter.transfer);
    return letter;
  }
  bool advance_one() { return couriers[random() % couriers.size()]->advance_thoroughly(); }
  /// Until nothing has moved for long.
  void settle() {
    for (int quiet = 0; quiet < 400; quiet++)
      if (advance_one()) quiet = 0;
  }

  FakeWorld world;
  std::mt19937_64 random;
  std::vector<std::unique_ptr<Courier>> couriers;
  std::deque<Letter> letters;

 private:
  static Letter& owner(Transfer* transfer) { return *static_cast<Letter*>(transfer); }
  Letter& make(Rank rank, bool receives, Rank peer, int32_t tag, uint64_t bytes) {
    Letter& letter = letters.emplace_back();
    letter.rank = rank;
    letter.order = letters.size();
    letter.memory.resize(bytes);
    letter.transfer.receives = receives;
    letter.transfer.peer = peer;
    letter.transfer.tag = tag;
    letter.transfer.data = letter.memory.data();
    letter.transfer.bytes = bytes;
    return letter;
  }
};

class CourierOver : public ::testing::TestWithParam<Behaviour> {};
INSTANTIATE_TEST_SUITE_P(All, CourierOver, ::testing::ValuesIn(testing::behaviours()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CourierOver, MessagesOfEverySizeArriveAsTheyWere) {
  for (uint64_t bytes : {0,   1,   64,  65,  80,  81,  100, 101, 130, 149, 150, 151,  170,
                         171, 300, 301, 340, 510, 511, 570, 571, 690, 691, 970, 5000, 20'000}) {
    SCOPED_TRACE(bytes);
    for (bool early : {false, true}) {
      Ranks ranks(2, GetParam(), bytes);
      Letter* receive = early ? &ranks.receive(1, 0, 3, bytes + 5) : nullptr;
      Letter& send = ranks.send(0, 1, 3, bytes);
      ranks.settle();
      EXPECT_TRUE(send.over || !early || bytes == 0);
      if (!early) receive = &ranks.receive(1, kAnySource, kAnyTag, bytes + 5);
      ranks.settle();
      ASSERT_TRUE(send.over && receive->over);
      EXPECT_FALSE(send.transfer.error || receive->transfer.error);
      EXPECT_EQ(receive->transfer.received.source, 0);
      EXPECT_EQ(receive->transfer.received.tag, 3);
      EXPECT_EQ(receive->transfer.received.bytes, bytes);
      EXPECT_TRUE(std::equal(send.memory.begin(), send.memory.end(), receive->memory.begin()));
      EXPECT_TRUE(ranks.couriers[0]->quiet() && ranks.couriers[1]->quiet());
    }
  }
}

TEST_P(CourierOver, ALongerMessageIsAnErrorOfThatReceiveAndStays) {
  for (uint64_t bytes : {50, 500}) {
    Ranks ranks(2, GetParam(), bytes);
    Letter& early = ranks.receive(1, 0, 3, 20);
    ranks.send(0, 1, 3, bytes);
    Letter& second = ranks.send(0, 1, 3, bytes + 1);
    ranks.settle();
    Letter& late = ranks.receive(1, kAnySource, 3, bytes - 1);
    for (Letter* letter : {&early, &late}) {
      ASSERT_TRUE(letter->over);
      ASSERT_TRUE(letter->transfer.error);
      EXPECT_EQ(letter->transfer.error->code(), Code::kTooLong);
      EXPECT_EQ(letter->transfer.error->rank(), 0);
      EXPECT_EQ(letter->transfer.received.bytes, bytes);
      EXPECT_EQ(letter->transfer.received.tag, 3);
      EXPECT_NE(std::string(letter->transfer.error->what()).find(fmt::format("{} bytes", bytes)),
                std::string::npos);
    }
    Letter& right = ranks.receive(1, 0, 3, bytes);
    Letter& next = ranks.receive(1, 0, 3, bytes + 1);
    ranks.settle();
    ASSERT_TRUE(right.over && next.over && second.over);
    EXPECT_EQ(right.transfer.received.bytes, bytes);
    EXPECT_EQ(next.memory, second.memory);
  }
}

TEST_P(CourierOver, WhatIsKeptOfASenderHasALimitAndTheRestIsAnnounced) {
  Ranks ranks(2, GetParam(), 1);
  std::vector<Letter*> sends;
  for (int i = 0; i < 50; i++) sends.push_back(&ranks.send(0, 1, i, 36));
  ranks.settle();
  auto over = std::ranges::count_if(sends, [](const Letter* letter) { return letter->over; });
  EXPECT_LE(over, 10);  // of 100 bytes each with what they count besides
  EXPECT_EQ(ranks.couriers[1]->counts().kept, static_cast<uint64_t>(over));
  EXPECT_GE(over, GetParam().inline_bytes >= 36 || GetParam().from_anywhere ? 10 : 0);
  std::vector<Letter*> receives;
  for (int i = 49; i >= 0; i--) receives.push_back(&ranks.receive(1, 0, i, 36));
  ranks.settle();
  for (int i = 0; i < 50; i++) {
    ASSERT_TRUE(sends[i]->over && receives[49 - i]->over) << i;
    EXPECT_EQ(sends[i]->memory, receives[49 - i]->memory);
  }
  // And then they go with their envelopes again.
  Letter& again = ranks.send(0, 1, 7, 36);
  ranks.settle();
  EXPECT_TRUE(again.over || over == 0);
}

TEST(Courier, ARankSendsToItself) {
  Ranks ranks(1, testing::behaviours()[0], 1);
  Letter& early = ranks.receive(0, 0, 1, 500);
  Letter& first = ranks.send(0, 0, 1, 400);
  EXPECT_TRUE(early.over && first.over);
  EXPECT_TRUE(std::equal(first.memory.begin(), first.memory.end(), early.memory.begin()));
  Letter& small = ranks.send(0, 0, 2, 10);
  EXPECT_TRUE(small.over) << "kept";
  Letter& large = ranks.send(0, 0, 2, 400);
  Letter& unwanted = ranks.send(0, 0, 9, 400);
  EXPECT_FALSE(large.over) << "its memory is needed until it is received";
  Letter& none = ranks.receive(0, kAnySource, 2, 9);
  EXPECT_EQ(none.transfer.error->code(), Code::kTooLong);
  Letter& one = ranks.receive(0, kAnySource, 2, 500);
  Letter& two = ranks.receive(0, kAnySource, 2, 500);
  EXPECT_TRUE(large.over && one.over && two.over);
  EXPECT_EQ(one.transfer.received.bytes, 10u);
  EXPECT_TRUE(std::equal(large.memory.begin(), large.memory.end(), two.memory.begin()));
  ranks.couriers[0]->withdraw(&unwanted.transfer, Error(Code::kTimeout, "late"));
  EXPECT_TRUE(unwanted.over && unwanted.transfer.error);
  EXPECT_FALSE(ranks.receive(0, 0, 9, 500).over);
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
  EXPECT_FALSE(receive.over);
  ASSERT_NE(ranks.couriers[1]->trouble_of(receive.transfer), nullptr);
  EXPECT_EQ(ranks.couriers[1]->trouble_of(receive.transfer)->code(), Code::kPeerLost);
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

TEST(Courier, WhatIsReadFromMemoryThatIsTheCallersAgainIsNoMessage) {
  Ranks ranks(2, kCalm, 1);
  Letter& send = ranks.send(0, 1, 1, 400);
  ranks.settle();
  ranks.couriers[0]->give_up();
  std::ranges::fill(send.memory, std::byte{0xee});
  Letter& receive = ranks.receive(1, 0, 1, 400);
  ranks.settle();
  EXPECT_FALSE(receive.over);
  ASSERT_NE(ranks.couriers[1]->trouble_of(receive.transfer), nullptr);
  EXPECT_EQ(ranks.couriers[1]->trouble_of(receive.transfer)->code(), Code::kPeerLost);
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
  EXPECT_FALSE(is_corrupt({.word = Word::kStretch, .bytes = 440, .where = 1}, 60));
  EXPECT_FALSE(is_corrupt({.word = Word::kStretch, .bytes = 400, .where = 1}, 40));
  EXPECT_EQ(room, std::vector<std::byte>(500, std::byte{1}));
}

TEST_F(HandMade, HelpThatGoesBeyondWhatIsReadIsCopiedAsFarAsItIsNew) {
  announce(200);
  courier.begin(&receive);
  courier.advance_thoroughly();
  ASSERT_EQ(receive.moved, kSmall.read_bytes);
  memory.assign(500, std::byte{9});
  EXPECT_FALSE(is_corrupt({.word = Word::kStretch, .bytes = 140, .where = 1}, 60));
  EXPECT_EQ(receive.stage, Stage::kOver);
  EXPECT_EQ(room[169], std::byte{7});
  EXPECT_EQ(room[170], std::byte{9});
  EXPECT_EQ(room[199], std::byte{9});
  EXPECT_EQ(room[200], std::byte{0});
}

TEST_F(HandMade, HelpWithWhatWasNotAnnouncedIsCorrupt) {
  announce(500);
  courier.begin(&receive);
  EXPECT_TRUE(is_corrupt({.word = Word::kStretch, .bytes = 440, .where = 2}, 60));
}

TEST_F(HandMade, HelpThatIsNotTheNextFromTheEndIsCorrupt) {
  announce(500);
  courier.begin(&receive);
  EXPECT_TRUE(is_corrupt({.word = Word::kStretch, .bytes = 430, .where = 1}, 60));
}

TEST_F(HandMade, HelpBeyondTheEndIsCorrupt) {
  announce(500);
  courier.begin(&receive);
  EXPECT_TRUE(is_corrupt({.word = Word::kStretch, .bytes = ~uint64_t{0} - 9, .where = 1}, 60));
}

TEST_P(CourierOver, ABrokenLinkIsOfThoseAloneWhoHaveToDoWithIt) {
  Ranks ranks(3, GetParam(), 1);
  Letter& any = ranks.receive(1, kAnySource, 1, 10);
  Letter& named = ranks.receive(1, 0, 2, 10);
  Letter& hello = ranks.send(0, 1, 3, 0);
  ranks.settle();
  ASSERT_TRUE(hello.over);
  ranks.world.break_link(0, 1, Code::kTransport);
  ranks.settle();
  EXPECT_EQ(ranks.couriers[1]->broken(), 1u);
  EXPECT_TRUE(ranks.couriers[1]->broke(0));
  EXPECT_EQ(ranks.couriers[1]->trouble_of(any.transfer), nullptr);
  ASSERT_NE(ranks.couriers[1]->trouble_of(named.transfer), nullptr);
  EXPECT_EQ(ranks.couriers[1]->trouble_of(named.transfer)->code(), Code::kTransport);
  Letter& other = ranks.send(2, 1, 1, 10);
  ranks.settle();
  EXPECT_TRUE(any.over && other.over);
  // What had come before stays.
  EXPECT_TRUE(ranks.receive(1, 0, 3, 0).over);
}

// ---- Random stories ----

bool fits(const Letter& receive, const Letter& send) {
  const Transfer &r = receive.transfer, &s = send.transfer;
  return s.peer == receive.rank && (r.peer == kAnySource || r.peer == send.rank) &&
         (r.tag == kAnyTag || r.tag == s.tag);
}

/// How the receives of a rank are asked for, so that there is one for each message.
enum class Mode { kExact, kAnyTag, kAnySource, kAny, kModes };

class Story : public Ranks {
 public:
  Story(Rank size, const Behaviour& behaviour, uint64_t seed) : Ranks(size, behaviour, seed) {
    for (Rank rank = 0; rank < size; rank++)
      modes_.push_back(static_cast<Mode>(random() % static_cast<int>(Mode::kModes)));
  }

  void tell(int messages) {
    std::vector<std::function<void()>> events;
    Rank size = static_cast<Rank>(couriers.size());
    for (int i = 0; i < messages; i++) {
      Rank from = below(size), to = below(size);
      int32_t tag = below(3);
      uint64_t bytes = 1 + random() % (below(2) ? 90 : 700);
      events.push_back([=, this] { sends_.push_back(&send(from, to, tag, bytes)); });
      Rank source = modes_[to] == Mode::kAny || modes_[to] == Mode::kAnySource ? kAnySource : from;
      int32_t wanted = modes_[to] == Mode::kAny || modes_[to] == Mode::kAnyTag ? kAnyTag : tag;
      events.push_back([=, this] { receives_.push_back(&receive(to, source, wanted, 800)); });
      if (below(6) == 0)  // whatever comes is too long for it
        events.push_back([=, this] { small_.push_back(&receive(to, source, wanted, 0)); });
    }
    std::ranges::shuffle(events, random);
    for (auto& event : events) {
      event();
      for (int i = below(12); i > 0; i--) advance_one();
    }
    settle();
  }

  void check() {
    for (Letter* send : sends_) ASSERT_TRUE(send->over && !send->transfer.error);
    for (Letter* receive : receives_) {
      ASSERT_TRUE(receive->over && !receive->transfer.error);
      Letter* send = sender_of(*receive);
      ASSERT_NE(send, nullptr) << "no message has this content";
      ASSERT_TRUE(fits(*receive, *send));
      ASSERT_TRUE(matched_.emplace(send, receive).second) << "a message arrived twice";
    }
    for (Letter* small : small_) ASSERT_EQ(small->over, small->transfer.error.has_value());
    check_order();
    for (auto& courier : couriers) EXPECT_TRUE(courier->quiet());
  }

 private:
  int32_t below(int n) { return static_cast<int32_t>(random() % n); }

  Letter* sender_of(const Letter& receive) {
    const Received& got = receive.transfer.received;
    for (Letter* send : sends_)
      if (send->rank == got.source && send->transfer.peer == receive.rank &&
          send->transfer.tag == got.tag && send->memory.size() == got.bytes &&
          std::equal(send->memory.begin(), send->memory.end(), receive.memory.begin()))
        if (!matched_.contains(send)) return send;
    return nullptr;
  }

  // Of two messages of one sender that fit a receive, the second does not get it while the first
  // has none that was posted before.
  void check_order() {
    for (auto [send, receive] : matched_)
      for (auto [earlier, its] : matched_)
        if (earlier->rank == send->rank && earlier->order < send->order &&
            fits(*receive, *earlier)) {
          ASSERT_LT(its->order, receive->order) << "a message was overtaken";
        }
  }

  std::vector<Mode> modes_;
  std::vector<Letter*> sends_, receives_, small_;
  std::map<Letter*, Letter*> matched_;
};

TEST_P(CourierOver, RandomStoriesEndWithEveryMessageWhereItBelongs) {
  for (uint64_t seed = 0; seed < 150; seed++) {
    SCOPED_TRACE(seed);
    Story story(static_cast<Rank>(1 + seed % 4), GetParam(), seed);
    story.tell(40);
    story.check();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace ringcoll
