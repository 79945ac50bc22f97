// Threads that send, receive and wait, over channels that put off what they can.
#include "p2p/post.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error_testing.h"
#include "p2p/post_testing.h"

namespace ringcoll {
namespace {

using testing::Behaviour, testing::contains, testing::error_of, testing::Office, testing::receive,
    testing::receive_of, testing::send, testing::send_of, testing::soon, testing::text_of;

class PostOver : public ::testing::TestWithParam<Behaviour> {};
INSTANTIATE_TEST_SUITE_P(All, PostOver, ::testing::ValuesIn(testing::behaviours()),
                         [](const auto& info) { return info.param.name; });

TEST_P(PostOver, BlockingMessagesGoBackAndForth) {
  Office office(2, GetParam());
  std::thread echo([&] {
    for (int i = 0; i < 300; i++) send(office[1], receive(office[1], 0, i % 5), 0, i % 5);
  });
  for (int i = 0; i < 300; i++) {
    std::string text = text_of((i * 37) % 1500, i);
    send(office[0], text, 1, i % 5);
    ASSERT_EQ(receive(office[0], 1, i % 5), text);
  }
  echo.join();
}

TEST_P(PostOver, ThreadsOfOneRankDoNotDisturbOneAnother) {
  Office office(2, GetParam());
  constexpr int kThreads = 4, kRounds = 60;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; i++) send(office[1], receive(office[1], 0, t), 0, t);
    });
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; i++) {
        std::string text = text_of((i * 41 + t) % 700, i);
        send(office[0], text, 1, t);
        ASSERT_EQ(receive(office[0], 1, t), text);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(PostOver, WhatNobodyWaitsForIsMovedByTheThreadOfTheLibrary) {
  Office office(2, GetParam());
  constexpr int kMessages = 30;
  std::vector<std::string> texts, rooms(kMessages, std::string(900, '-'));
  for (int i = 0; i < kMessages; i++) texts.push_back(text_of(i * 29, i));
  std::deque<Transfer> all;
  std::atomic<int> done{0};
  for (int i = 0; i < kMessages; i++) {
    Transfer& to = all.emplace_back(receive_of(rooms[i], 0, i));
    Transfer& from = all.emplace_back(send_of(texts[i], 1, i));
    for (Transfer* each : {&to, &from})
      each->done = [&](const std::optional<Error>& error) {
        EXPECT_FALSE(error);
        done++;
      };
    office[0].start(from);
    office[1].start(to);
  }
  EXPECT_TRUE(soon([&] { return done == 2 * kMessages; })) << done;
  for (Transfer& each : all) EXPECT_TRUE(office[each.receives].wait(each, -1));
  for (int i = 0; i < kMessages; i++) EXPECT_EQ(rooms[i].substr(0, texts[i].size()), texts[i]);
  EXPECT_EQ(office[0].counts().sent, uint64_t{kMessages});
  EXPECT_EQ(office[1].counts().received, uint64_t{kMessages});
}

TEST_P(PostOver, AWindowOfMessagesIsStartedAndThenWaitedFor) {
  Office office(2, GetParam());
  auto side = [&](bool sends) {
    for (int round = 0; round < 5; round++) {
      std::deque<Transfer> window;
      std::vector<std::string> texts(20);
      for (int i = 0; i < 20; i++) {
        texts[i] = sends ? text_of(i * 50, i) : std::string(1000, '-');
        window.push_back(sends ? send_of(texts[i], 1, i) : receive_of(texts[i], 0, i));
      }
      for (Transfer& each : window) office[!sends].start(each);
      for (Transfer& each : window) ASSERT_TRUE(office[!sends].wait(each, -1));
      for (int i = 0; i < 20; i++) EXPECT_EQ(texts[i].substr(0, i * 50), text_of(i * 50, i));
    }
  };
  std::thread receiver(side, false);
  side(true);
  receiver.join();
}

// The receiver is not in the library any more, and what it has to say had no credit then.
TEST_P(PostOver, ASenderHearsOfTheEndThoughTheReceiverDoesSomethingElse) {
  Office office(2, GetParam());
  std::promise<void> sent;
  std::thread receiver([&] {
    for (int i = 0; i < 20; i++) receive(office[1], 0, 1);
    sent.get_future().wait();
  });
  for (int i = 0; i < 20; i++) send(office[0], text_of(400 + i, i), 1, 1);
  sent.set_value();
  receiver.join();
}

TEST_P(PostOver, WhatHasBeenSentArrivesThoughItsSenderDoesSomethingElse) {
  Office office(2, GetParam(), 5);
  for (int i = 0; i < 30; i++)
    for (size_t bytes : {20, 90, 500, 2000}) {
      std::string text = text_of(bytes, i);
      auto sent = std::async(std::launch::async, [&] { send(office[0], text, 1, 1); });
      ASSERT_EQ(receive(office[1], 0, 1), text) << i;
      sent.get();
    }
}

// A wait that blocks looks up by itself only every 50 ms.
TEST_P(PostOver, AMessageToItselfEndsAWaitForAnybodyAtOnce) {
  Office office(2, GetParam());
  std::vector<Duration> delays;
  for (int i = 0; i < 9; i++) {
    Clock::time_point received;
    std::thread waiter([&] {
      EXPECT_EQ(receive(office[1], kAnySource, 3), "news");
      received = Clock::now();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // it blocks by now
    auto sent = Clock::now();
    send(office[1], "news", 1, 3);
    waiter.join();
    delays.push_back(received - sent);
  }
  std::nth_element(delays.begin(), delays.begin() + 4, delays.end());
  EXPECT_LT(delays[4], std::chrono::milliseconds(15));
}

TEST_P(PostOver, AFailureEndsEverythingAndGivesMemoryBack) {
  Office office(2, GetParam());
  std::string text = text_of(700, 1), room(10, '-');
  Transfer unwanted = send_of(text, 1, 1), none = receive_of(room, kAnySource, 2);
  std::atomic<int> told{0};
  none.done = [&](const std::optional<Error>& error) { told += error.has_value(); };
  office[0].start(unwanted);
  office[0].start(none);
  auto blocked =
      std::async(std::launch::async, [&] { return error_of([&] { receive(office[1], 0, 9); }); });
  EXPECT_FALSE(office[0].wait(unwanted, 0.02));
  office.health[1]->poison(Error(Code::kAborted, "that is enough", 1));
  EXPECT_EQ(blocked.get().code(), Code::kAborted);
  for (Transfer* each : {&unwanted, &none}) {
    EXPECT_TRUE(office[0].wait(*each, -1));
    EXPECT_EQ(each->error->code(), Code::kAborted);
    EXPECT_TRUE(contains(*each->error, "that is enough")) << each->error->what();
    EXPECT_TRUE(contains(*each->error, each->describe().c_str())) << each->error->what();
  }
  EXPECT_EQ(told, 1);
  Transfer refused = receive_of(room, 1, 1);
  EXPECT_EQ(error_of([&] { office[0].start(refused); }).code(), Code::kAborted);
}

// One that gives the CPU away blocks after its first look without news.
TEST(Post, WhoHasHeardOfAFailureDoesNotBlockOnceMore) {
  Office office(2, testing::behaviours()[0], 20, true);
  std::atomic<int> waits{0};
  office.world.on_wait = [&](Rank) {
    if (waits++ == 0) office.health[0]->poison(Error(Code::kAborted, "that is enough", 1));
  };
  EXPECT_EQ(error_of([&] { receive(office[0], 1, 1); }).code(), Code::kAborted);
  EXPECT_EQ(waits, 1);
}

// Two threads start one each and wake who is blocked, with the lock open; it is closed meanwhile,
// and while the outcome of the first is told, the second goes on. Here the second begins within the
// first, so that all happens in this order.
TEST(Post, WhatIsStartedWhileItIsClosedLeavesNoThread) {
  Office office(2, testing::behaviours()[0]);
  std::promise<void> waits, is_closing, told, started;
  std::shared_future<void> closing(is_closing.get_future());
  std::once_flag first_wait, first_told;
  std::string rooms[2] = {std::string(10, '-'), std::string(10, '-')};
  Transfer transfers[2] = {receive_of(rooms[0], 1, 1), receive_of(rooms[1], 1, 2)};
  for (Transfer& each : transfers)
    each.done = [&](const std::optional<Error>& error) {
      EXPECT_TRUE(error);
      std::call_once(first_told, [&] {
        told.set_value();
        started.get_future().wait();
      });
    };
  office.world.on_wait = [&](Rank) {
    std::call_once(first_wait, [&] { waits.set_value(); });
    closing.wait();
  };
  std::future<void> closed;
  int depth = 0;
  office.world.on_wake = [&](Rank) {
    if (depth == 2) return;  // of who closes
    if (++depth == 1) {
      office[0].start(transfers[1]);
      started.set_value();
      return;
    }
    closed = std::async(std::launch::async, [&] { office[0].close(); });
    is_closing.set_value();
    told.get_future().wait();
  };
  auto blocked =
      std::async(std::launch::async, [&] { return error_of([&] { receive(office[0], 1, 3); }); });
  waits.get_future().wait();
  office[0].start(transfers[0]);
  closed.get();
  EXPECT_EQ(blocked.get().code(), Code::kAborted);
  for (Transfer& each : transfers) {
    EXPECT_TRUE(office[0].wait(each, -1));
    EXPECT_EQ(each.error->code(), Code::kAborted);
  }
  office.posts.erase(office.posts.begin());  // which ends the process if a thread was left
}

TEST_P(PostOver, ClosingEndsWhatIsLeftAndPeersHearThatItHasLeft) {
  Office office(3, GetParam());
  std::string text = text_of(700, 1), room(800, '-');
  Transfer unwanted = send_of(text, 1, 1), none = receive_of(room, kAnySource, 2);
  office[0].start(unwanted);
  office[0].start(none);
  std::string words(20, '-');
  Transfer wanted = receive_of(words, 0, 5);
  office[1].start(wanted);
  send(office[0], "last words", 1, 5);
  office.leave(0);
  for (Transfer* each : {&unwanted, &none}) {
    EXPECT_TRUE(office[0].wait(*each, -1));
    EXPECT_EQ(each->error->code(), Code::kAborted);
  }
  EXPECT_EQ(error_of([&] { send(office[0], text, 1, 1); }).code(), Code::kAborted);
  EXPECT_TRUE(office[1].wait(wanted, -1));
  EXPECT_FALSE(wanted.error);
  EXPECT_EQ(words.substr(0, wanted.received.bytes), "last words");
  EXPECT_FALSE(office.health[1]->poisoned()) << "the others go on";
  std::thread sender([&] { send(office[2], "still here", 1, 6); });
  EXPECT_EQ(receive(office[1], kAnySource, 6), "still here");
  sender.join();
  Error error = error_of([&] { receive(office[1], 0, 7); });
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_EQ(error.rank(), 0);
  EXPECT_TRUE(contains(error, "has left the communicator")) << error.what();
}

TEST(Post, WhoWaitsForAnybodyHearsThatAllHaveLeft) {
  Office office(3, testing::behaviours()[0]);
  auto blocked = std::async(std::launch::async,
                            [&] { return error_of([&] { receive(office[0], kAnySource, 1); }); });
  office.leave(1);
  office.leave(2);
  EXPECT_EQ(blocked.get().code(), Code::kPeerLost);
}

TEST_P(PostOver, AThreadThatLeavesTheRoleHandsItOver) {
  Office office(2, GetParam());
  for (int round = 0; round < 10; round++) {
    std::promise<void> began;
    std::thread first([&] {
      std::string room(10, '-');
      Transfer late = receive_of(room, 1, 1, 0.02);
      began.set_value();
      EXPECT_EQ(error_of([&] { office[0].run(late); }).code(), Code::kTimeout);
    });
    began.get_future().wait();
    std::thread second([&] { EXPECT_EQ(receive(office[0], 1, 2), "for the second"); });
    first.join();
    send(office[1], "for the second", 0, 2);
    second.join();
  }
}

TEST_P(PostOver, ACallbackStartsTheNext) {
  Office office(2, GetParam());
  constexpr int kMessages = 100;
  std::string room(2000, '-');
  std::deque<Transfer> all;
  std::promise<void> end;
  std::function<void()> next = [&] {
    Transfer& one = all.emplace_back(receive_of(room, kAnySource, kAnyTag));
    one.done = [&](const std::optional<Error>& error) {
      EXPECT_FALSE(error);
      EXPECT_TRUE(office[0].wait(one, -1)) << "within its callback at once";
      if (all.size() < kMessages)
        next();
      else
        end.set_value();
    };
    office[0].start(one);
  };
  next();
  for (int i = 0; i < kMessages; i++) send(office[1], text_of(i * 13, i), 0, i);
  end.get_future().wait();
  EXPECT_TRUE(office[0].wait(all.back(), -1));
}

TEST_P(PostOver, ABlockingCallTakesTheRoleFromTheThreadOfTheLibrary) {
  Office office(2, GetParam());
  std::string room(10, '-');
  Transfer forever = receive_of(room, kAnySource, 99);
  office[0].start(forever);
  EXPECT_FALSE(office[0].wait(forever, 0.01));
  std::thread echo([&] {
    for (int i = 0; i < 100; i++) send(office[1], receive(office[1], 0, 1), 0, 1);
    send(office[1], "end", 0, 99);
  });
  for (int i = 0; i < 100; i++) {
    send(office[0], text_of(i * 9, i), 1, 1);
    ASSERT_EQ(receive(office[0], 1, 1), text_of(i * 9, i));
  }
  EXPECT_TRUE(office[0].wait(forever, -1));
  EXPECT_EQ(room.substr(0, 3), "end");
  echo.join();
}

TEST(Post, ABrokenChannelFailsTheGroupWhenSomebodyNeedsIt) {
  Office office(3, testing::behaviours()[0]);
  std::thread sender([&] { send(office[1], "hello", 0, 1); });
  EXPECT_EQ(receive(office[0], 1, 1), "hello");
  sender.join();
  office.world.break_link(0, 1, Code::kTransport);
  std::thread other([&] { send(office[2], "hello", 0, 1); });
  EXPECT_EQ(receive(office[0], kAnySource, 1), "hello");
  other.join();
  EXPECT_FALSE(office.health[0]->poisoned());
  EXPECT_EQ(error_of([&] { send(office[0], text_of(500, 1), 1, 1); }).code(), Code::kTransport);
  EXPECT_TRUE(office.health[0]->poisoned());
}

// Whoever is blocked uses the channels, so that nobody else may give them up.
TEST_P(PostOver, AFailureThatIsFoundWhileAnotherThreadWaitsIsLeftToThatOne) {
  Office office(3, GetParam());
  std::thread sender([&] { send(office[1], "hello", 0, 1); });
  EXPECT_EQ(receive(office[0], 1, 1), "hello");
  sender.join();
  office.world.break_link(0, 1, Code::kTransport);
  int before = office.world.waits();
  auto waits =
      std::async(std::launch::async, [&] { return error_of([&] { receive(office[0], 2, 9); }); });
  // Once for the news of the link, which nobody needs, and then for what does not come.
  Deadline deadline(std::chrono::seconds(10));
  while (office.world.waits() < before + 2 && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(error_of([&] { send(office[0], text_of(500, 1), 1, 1); }).code(), Code::kTransport);
  EXPECT_EQ(waits.get().code(), Code::kTransport);
}

// Every rank sends to every rank, in several threads, in ways that are drawn by lot.

TEST_P(PostOver, RandomThreadsOfRandomRanks) {
  constexpr int kThreads = 3, kMessages = 40;
  Office office(3, GetParam());
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 3; rank++)
    for (int t = 0; t < kThreads; t++)
      threads.emplace_back([&, rank, t] {
        std::mt19937_64 random(rank * 10 + t);
        std::deque<Transfer> started;
        std::deque<std::string> texts;
        // With the t-th threads of all ranks: one receive for each message from each.
        for (int i = 0; i < kMessages; i++)
          for (Rank peer = 0; peer < 3; peer++) {
            texts.emplace_back(800, '-');
            started.push_back(receive_of(texts.back(), peer, t));
            office[rank].start(started.back());
          }
        for (int i = 0; i < kMessages; i++)
          for (Rank peer = 0; peer < 3; peer++) {
            std::string text = text_of((i * 61 + t * 7 + rank) % 800, i);
            if (random() % 2 == 0) {
              send(office[rank], text, peer, t);
              continue;
            }
            texts.push_back(text);
            started.push_back(send_of(texts.back(), peer, t));
            if (random() % 2 == 0) started.back().done = [](const std::optional<Error>&) {};
            office[rank].start(started.back());
          }
        for (Transfer& each : started) {
          ASSERT_TRUE(office[rank].wait(each, -1));
          ASSERT_FALSE(each.error);
        }
        for (int i = 0; i < kMessages; i++)
          for (Rank peer = 0; peer < 3; peer++) {
            const Transfer& got = started[i * 3 + peer];
            std::string expected = text_of((i * 61 + t * 7 + peer) % 800, i);
            ASSERT_EQ(texts[i * 3 + peer].substr(0, got.received.bytes), expected);
          }
      });
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace ringcoll
