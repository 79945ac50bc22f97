// What becomes of a message whose caller interrupts it.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/error_testing.h"
#include "base/interruption.h"
#include "p2p/post.h"
#include "p2p/post_testing.h"

namespace ringcoll {
namespace {

using testing::Behaviour, testing::contains, testing::error_of, testing::kSmall, testing::Office,
    testing::receive, testing::receive_of, testing::send, testing::send_of, testing::text_of;

/// Runs it as an engine does whose caller says when to end it.
void run(Post& post, Transfer& transfer, const std::atomic<bool>& ends) {
  Interruption interruption([&] { return ends.load(); }, [&] { post.interrupt(transfer); });
  post.run(transfer);
}

class PostInterrupted : public ::testing::TestWithParam<Behaviour> {};
INSTANTIATE_TEST_SUITE_P(All, PostInterrupted, ::testing::ValuesIn(testing::behaviours()),
                         [](const auto& info) { return info.param.name; });

TEST_P(PostInterrupted, WhatNobodyHasMetEndsAlone) {
  Office office(2, GetParam());
  std::string text = text_of(2000, 1), room(10, '-');
  Transfer sent = send_of(text, 1, 1), received = receive_of(room, kAnySource, 2),
           own = send_of(text, 0, 3);
  for (Transfer* each : {&sent, &received, &own}) {
    std::atomic<bool> at_once = true;
    Error error = error_of([&] { run(office[0], *each, at_once); });
    EXPECT_EQ(error.code(), Code::kAborted);
    EXPECT_TRUE(contains(error, each->describe().c_str())) << error.what();
    EXPECT_TRUE(contains(error, "goes on")) << error.what();
  }
  text.assign(text.size(), '!');  // it is the caller's again
  EXPECT_FALSE(office.health[0]->poisoned());
  std::thread sender([&] { send(office[0], "the next", 1, 1); });
  EXPECT_EQ(receive(office[1], 0, 1), "the next");
  sender.join();
}

// A message that both have begun, and that the peer does not go on with.
TEST(Post, AMessageUnderWayThatIsInterruptedPoisons) {
  Office office(2, testing::behaviours()[1]);
  Courier courier(office.world.channels(1), kSmall, [](Transfer*) {});
  std::string text = text_of(3000, 1), room(3000, '-');
  Transfer wanted = receive_of(room, 0, 1), sent = send_of(text, 1, 1);
  courier.begin(&wanted);
  std::atomic<bool> ends = false;
  std::thread peer([&] {
    while (wanted.moved == 0) courier.advance_thoroughly();
    ends = true;
  });
  Error error = error_of([&] { run(office[0], sent, ends); });
  peer.join();
  EXPECT_EQ(error.code(), Code::kAborted);
  EXPECT_EQ(error.rank(), 0);
  EXPECT_TRUE(contains(error, "interrupted in its send of 3000 bytes")) << error.what();
  EXPECT_TRUE(office.health[0]->poisoned());
}

}  // namespace
}  // namespace ringcoll
