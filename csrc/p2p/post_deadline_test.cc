// What becomes of messages whose deadline passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "base/error_testing.h"
#include "p2p/post.h"
#include "p2p/post_testing.h"

namespace ringcoll {
namespace {

using testing::Behaviour, testing::contains, testing::error_of, testing::kSmall, testing::Office,
    testing::receive, testing::receive_of, testing::send, testing::send_of, testing::text_of;

class PostDeadline : public ::testing::TestWithParam<Behaviour> {};
INSTANTIATE_TEST_SUITE_P(All, PostDeadline, ::testing::ValuesIn(testing::behaviours()),
                         [](const auto& info) { return info.param.name; });

TEST_P(PostDeadline, AReceiveWithoutAMessageTimesOutAlone) {
  Office office(2, GetParam());
  std::string room(10, '-');
  Transfer late = receive_of(room, 1, 3, 0.05);
  Error error = error_of([&] { office[0].run(late); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_TRUE(contains(error, "receive of at most 10 bytes from rank 1, tag 3")) << error.what();
  EXPECT_TRUE(contains(error, "0.05 s")) << error.what();
  Transfer started = receive_of(room, kAnySource, 4, 0.05);
  office[0].start(started);
  EXPECT_TRUE(office[0].wait(started, -1));
  EXPECT_EQ(started.error->code(), Code::kTimeout);
  EXPECT_FALSE(office.health[0]->poisoned());
  std::thread sender([&] { send(office[1], "hello", 0, 3); });
  EXPECT_EQ(receive(office[0], 1, 3), "hello");
  sender.join();
}

TEST_P(PostDeadline, ASendThatNobodyReceivesTimesOutAlone) {
  Office office(2, GetParam());
  std::string text = text_of(2000, 1);
  for (bool started : {false, true}) {
    Transfer late = send_of(text, 1, 3, 0.05);
    if (started) {
      office[0].start(late);
      EXPECT_TRUE(office[0].wait(late, -1));
    } else {
      Error raised = error_of([&] { office[0].run(late); });
      EXPECT_EQ(raised.code(), Code::kTimeout);
    }
    ASSERT_TRUE(late.error);
    EXPECT_EQ(late.error->code(), Code::kTimeout);
    EXPECT_EQ(late.error->rank(), 1);
    EXPECT_TRUE(contains(*late.error, "send of 2000 bytes to rank 1, tag 3")) << late.error->what();
    EXPECT_TRUE(contains(*late.error, "0.05 s")) << late.error->what();
  }
  text.assign(2000, '!');  // it is the caller's again
  EXPECT_FALSE(office.health[0]->poisoned());
  std::thread sender([&] { send(office[0], "the next", 1, 3); });
  EXPECT_EQ(receive(office[1], 0, 3), "the next");
  sender.join();
}

// What is short ends when the peer's library has it, whose thread does something else here.
TEST_P(PostDeadline, AShortSendToOneThatIsBusyEndsByItsDeadlineOrLater) {
  Office office(2, GetParam());
  std::string texts[] = {text_of(20, 1), text_of(90, 2), text_of(100, 3)};
  std::deque<Transfer> sends;
  for (int round = 0; round < 20; round++)
    for (auto& text : texts) office[0].start(sends.emplace_back(send_of(text, 1, 1, 0.02)));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(office.health[0]->poisoned());
  int came = 0;
  for (Error error(Code::kInternal, ""); error.code() != Code::kTimeout;) {
    std::string room(100, '-');
    Transfer receive = receive_of(room, 0, 1, 0.5);
    error = Error(Code::kInternal, "");
    try {
      office[1].run(receive);
      came++;
      EXPECT_TRUE(std::ranges::count(texts, room.substr(0, receive.received.bytes)) == 1);
    } catch (const Error& raised) {
      error = raised;
    }
  }
  int ended_well = 0;
  for (Transfer& each : sends) {
    EXPECT_TRUE(office[0].wait(each, -1));
    ended_well += !each.error;
  }
  EXPECT_EQ(came, ended_well);
  EXPECT_FALSE(office.health[0]->poisoned());
}

TEST_P(PostDeadline, AStartedSendHasNoDeadlineOfItsOwn) {
  Office office(2, GetParam(), 1);  // which counts once both have met
  std::string text = text_of(2000, 1);
  Transfer unwanted = send_of(text, 1, 3);
  office[0].start(unwanted);
  EXPECT_FALSE(office[0].wait(unwanted, 1.5)) << "which is the waiter's alone";
  EXPECT_FALSE(office.health[0]->poisoned());
  EXPECT_EQ(receive(office[1], 0, 3), text);
  EXPECT_TRUE(office[0].wait(unwanted, -1));
  EXPECT_FALSE(unwanted.error);
}

/// Rank 1 is a courier that the test moves by hand.
struct ByHand {
  explicit ByHand(double timeout_s)
      : office(2, testing::behaviours()[1], timeout_s),
        courier(office.world.channels(1), kSmall, [this](Transfer*) { ended++; }) {}
  void begin(Transfer& transfer) { courier.begin(&transfer); }
  Office office;
  Courier courier;
  int ended = 0;
};

// A message that both have begun.
TEST(Post, WhatGoesOnIsNotLate) {
  ByHand peer(0.5);
  std::string text = text_of(3000, 1), room(3000, '-');
  Transfer send = send_of(text, 0, 1);
  peer.begin(send);
  Transfer wanted = receive_of(room, 1, 1);
  peer.office[0].start(wanted);
  auto begun = Clock::now();
  while (!peer.office[0].wait(wanted, 0)) {
    peer.courier.advance_thoroughly();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ASSERT_LT(Clock::now() - begun, std::chrono::seconds(20));
  }
  EXPECT_FALSE(wanted.error);
  EXPECT_EQ(room, text);
  EXPECT_GT(Clock::now() - begun, std::chrono::seconds(1));
}

// Whoever asks has opened the lock, and another thread moves the message on.
TEST(Post, AMessageThatEndsWhileItsPeerIsAskedIsNoFailure) {
  std::string text = text_of(3000, 1), room(3000, '-'), tiny = "x";
  Transfer wanted = receive_of(room, 0, 1), send = send_of(text, 1, 1);
  std::deque<Transfer> others;  // of which some may be left
  ByHand peer(0.5);
  Office& office = peer.office;
  std::once_flag once;
  office.on_describe = [&] {
    std::call_once(once, [&] {
      while (peer.ended == 0 || !office[0].has_ended(send)) {
        peer.courier.advance_thoroughly();
        office[0].start(others.emplace_back(send_of(tiny, 1, 2)));
      }
    });
  };
  peer.begin(wanted);
  office[0].start(send);
  while (wanted.moved == 0) peer.courier.advance_thoroughly();  // and then no more
  EXPECT_TRUE(office[0].wait(send, -1));
  EXPECT_FALSE(send.error);
  EXPECT_EQ(room, text);
  std::call_once(once, [] { ADD_FAILURE() << "nobody was blamed"; });
  EXPECT_FALSE(office.health[0]->poisoned());
}

TEST(Post, AMessageThatDoesNotGoOnIsThePeersFault) {
  ByHand peer(0.5);
  std::string text = text_of(3000, 1), room(3000, '-');
  Transfer wanted = receive_of(room, 0, 1);
  peer.begin(wanted);
  Transfer send = send_of(text, 1, 1);
  peer.office[0].start(send);
  while (wanted.moved == 0) peer.courier.advance_thoroughly();  // and then no more
  EXPECT_TRUE(peer.office[0].wait(send, -1));
  ASSERT_TRUE(send.error);
  EXPECT_EQ(send.error->code(), Code::kTimeout);
  EXPECT_TRUE(peer.office.health[0]->poisoned());
}

TEST(Post, ASendToItselfThatNobodyReceivesTimesOutAlone) {
  Office office(1, testing::behaviours()[0]);
  std::string text = text_of(500, 1);
  Transfer late = send_of(text, 0, 3, 0.05);
  EXPECT_EQ(error_of([&] { office[0].run(late); }).code(), Code::kTimeout);
  EXPECT_FALSE(office.health[0]->poisoned());
  std::thread sender([&] { send(office[0], text, 0, 4); });
  EXPECT_EQ(receive(office[0], 0, 4), text);
  sender.join();
}

}  // namespace
}  // namespace ringcoll
