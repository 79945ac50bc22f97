// What couriers do for every channel that there may be.
#include "p2p/courier.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "p2p/couriers_testing.h"

namespace ringcoll {
namespace {

using testing::Behaviour;
using testing::Letter;
using testing::Ranks;

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

// Whoever leaves has done with a send once that has ended.
TEST_P(CourierOver, WhatHasBeenSentOutlivesItsSender) {
  for (uint64_t bytes : {20, 100, 500, 5000}) {
    SCOPED_TRACE(bytes);
    Ranks ranks(2, GetParam(), bytes);
    Letter& receive = ranks.receive(1, 0, 3, bytes);
    Letter& send = ranks.send(0, 1, 3, bytes);
    for (int i = 0; i < 10'000 && !(send.over && ranks.couriers[0]->quiet()); i++)
      ranks.advance_one();
    ASSERT_TRUE(send.over);
    ranks.couriers[0]->give_up();
    auto content = std::exchange(send.memory, {});
    ranks.settle();
    ASSERT_TRUE(receive.over);
    EXPECT_FALSE(receive.error);
    EXPECT_EQ(receive.memory, content);
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
