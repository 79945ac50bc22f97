// Connections that either of a pair may need first.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "connect/connector.h"
#include "connect/dials.h"
#include "net/event_loop.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

Config on_loopback() {
  Config config;
  config.interface = "127.0.0.1/32";
  return config;
}

/// Two ranks that know each other.
struct Couple {
  Couple() {
    std::vector<std::string> offers;
    for (Rank rank : {0, 1}) {
      connectors.push_back(std::make_unique<Connector>(rank, on_loopback(), loop));
      offers.push_back(connectors.back()->offers());
    }
    for (auto& connector : connectors) connector->set_peers(offers, "sesame");
  }
  Connector& operator[](Rank rank) { return *connectors[rank]; }

  EventLoop loop{"test"};
  std::vector<std::unique_ptr<Connector>> connectors;
};

Fd taken(Connector& connector, Rank peer, GroupNumber group) {
  for (Deadline deadline(seconds(20)); !deadline.passed();) {
    if (Fd fd = connector.take_call(peer, group)) return fd;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  throw Error(Code::kTimeout, "no connection comes");
}

/// Whether they are the ends of one connection, on which nothing else was said.
bool are_joined(const Fd& a, const Fd& b) {
  Deadline deadline(seconds(20));
  for (auto [from, to] : {std::pair(&a, &b), {&b, &a}}) {
    uint64_t word = 0x1234567812345678, heard = 0;
    send_all(from->get(), &word, sizeof word, deadline, "test");
    recv_all(to->get(), &heard, sizeof heard, deadline, "test");
    if (heard != word) return false;
  }
  return true;
}

TEST(Calls, OfEitherAreTakenByBoth) {
  Couple couple;
  for (Rank caller : {0, 1}) {
    auto group = static_cast<GroupNumber>(caller + 5);
    std::atomic<int> news{0};
    couple[1 - caller].listen_for_calls(group, [&] { news++; });
    EXPECT_FALSE(couple[caller].take_call(1 - caller, group));
    couple[caller].call(1 - caller, group, Deadline(seconds(20)));
    Fd mine = taken(couple[caller], 1 - caller, group);
    Fd theirs = taken(couple[1 - caller], caller, group);
    EXPECT_TRUE(are_joined(mine, theirs));
    EXPECT_GE(news, 1);
    EXPECT_EQ(couple[caller].callers(group), std::vector<Rank>());
    couple[1 - caller].end_calls(group);
  }
}

// However the two meet: one connection is made, and the same on both sides.
TEST(Calls, OfBothAtOnceAreOne) {
  Couple couple;
  for (GroupNumber group = 1; group <= 200; group++) {
    std::vector<std::future<Fd>> ends;
    for (Rank rank : {0, 1})
      ends.push_back(std::async(std::launch::async, [&, rank] {
        if (static_cast<Rank>(group % 2) == rank)
          std::this_thread::sleep_for(std::chrono::microseconds(group % 40 * 20));
        couple[rank].call(1 - rank, group, Deadline(seconds(20)));
        return taken(couple[rank], 1 - rank, group);
      }));
    Fd a = ends[0].get(), b = ends[1].get();
    ASSERT_TRUE(are_joined(a, b)) << group;
    for (Rank rank : {0, 1}) {
      couple[rank].end_calls(group);
      couple[rank].forget(group);
    }
  }
}

TEST(Calls, ThatNobodyTookEndWithTheirGroup) {
  Couple couple;
  couple[1].call(0, 7, Deadline(seconds(20)));
  Fd mine = taken(couple[1], 0, 7);
  couple[0].end_calls(7);
  couple[0].forget(7);
  char byte = 0;
  EXPECT_THROW(recv_all(mine.get(), &byte, 1, Deadline(seconds(20)), "test"), Error);
  couple[1].call(0, 8, Deadline(seconds(20)));
  EXPECT_TRUE(taken(couple[1], 0, 8)) << "others do not mind";
}

// Its group goes next, with all that it refers to.
TEST(Calls, WhoListensIsForgottenWhenTheyEnd) {
  Couple couple;
  auto listener = std::make_shared<std::atomic<int>>(0);
  std::weak_ptr<std::atomic<int>> left = listener;
  couple[0].listen_for_calls(7, [listener = std::move(listener)] { (*listener)++; });
  couple[1].call(0, 7, Deadline(seconds(20)));
  EXPECT_TRUE(taken(couple[0], 1, 7));
  EXPECT_FALSE(left.expired());
  couple[0].end_calls(7);
  Deadline deadline(seconds(20));  // the thread that told of the call may still hold it
  while (!left.expired() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  EXPECT_TRUE(left.expired());
}

// To one that has left the group, or ended.
TEST(Calls, ThatCannotBeMadeSayWhy) {
  Couple couple;
  auto error_of = [&](GroupNumber group) {
    couple[1].call(0, group, Deadline(seconds(20)));
    try {
      taken(couple[1], 0, group);
      return Error(Code::kInternal, "no error");
    } catch (const Error& error) {
      return error;
    }
  };
  couple[0].forget(3);
  Error left = error_of(3);
  EXPECT_EQ(left.code(), Code::kPeerLost) << left.what();
  EXPECT_EQ(left.rank(), 0);
  couple.connectors[0].reset();
  Error ended = error_of(4);
  EXPECT_EQ(ended.code(), Code::kPeerLost) << ended.what();
  EXPECT_EQ(ended.rank(), 0);
}

// One that does not answer is no reason to wait.
TEST(Calls, EndAtOnceThoughThePeerDoesNotAnswer) {
  EventLoop loop("test");
  Connector caller(0, on_loopback(), loop);
  std::string offers = caller.offers();
  Connector other(1, on_loopback(), loop);  // listens, and lets nobody in yet
  caller.set_peers({offers, other.offers()}, "sesame");
  auto start = Clock::now();
  caller.call(1, 5, Deadline(seconds(60)));
  caller.end_calls(5);
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
  caller.call(1, 6, Deadline(seconds(60)));
  caller.stop();
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
}

// As those of ranks that are stopped: more of them than are dialled at a time.
TEST(Calls, DoNotWaitForPeersThatDoNotAnswer) {
  constexpr Rank kSilent = 80, kSize = kSilent + 2;
  EventLoop loop("test");
  std::vector<std::unique_ptr<Connector>> connectors;
  std::vector<std::string> offers;
  for (Rank rank = 0; rank < kSize; rank++) {
    connectors.push_back(std::make_unique<Connector>(rank, on_loopback(), loop));
    offers.push_back(connectors.back()->offers());
  }
  Connector &caller = *connectors.front(), &other = *connectors.back();
  for (Connector* connector : {&caller, &other}) connector->set_peers(offers, "sesame");
  auto start = Clock::now();
  for (Rank peer = 1; peer < kSize; peer++) caller.call(peer, 5, Deadline(seconds(60)));
  EXPECT_TRUE(are_joined(taken(caller, kSize - 1, 5), taken(other, 0, 5)));
  EXPECT_LT(to_seconds(Clock::now() - start), 15);
  caller.end_calls(5);
}

TEST(Calls, OfLifelinesSayWhatHasBecomeOfThePeer) {
  Couple couple;
  EventLoop loop("test");
  Connector silent(2, on_loopback(), loop);
  std::vector<std::string> offers = {couple[0].offers(), couple[1].offers(), silent.offers()};
  Connector caller(0, on_loopback(), loop);
  caller.set_peers(offers, "sesame");
  couple.connectors[1].reset();
  auto outcome = [&](Rank peer, double patience) {
    std::promise<std::optional<Unmade>> done;
    EXPECT_TRUE(caller.call_lifeline(
        peer, Deadline(seconds(patience)), [](Fd) {},
        [&](const std::optional<Unmade>& unmade) { done.set_value(unmade); }));
    return done.get_future().get();
  };
  auto ended = outcome(1, 20), stopped = outcome(2, 0.2);
  ASSERT_TRUE(ended && stopped);
  EXPECT_EQ(ended->peer, Unmade::Peer::kEnded) << ended->why.what();
  EXPECT_EQ(stopped->peer, Unmade::Peer::kUnknown) << stopped->why.what();
  EXPECT_EQ(stopped->why.code(), Code::kTimeout);
}

TEST(Calls, OfLifelinesAreAdopted) {
  for (Rank caller : {0, 1}) {
    Couple couple;
    std::vector<std::promise<Fd>> adopted(2);
    for (Rank rank : {0, 1})
      couple[rank].adopt_lifelines([&, rank](Rank peer, Fd fd) {
        EXPECT_EQ(peer, 1 - rank);
        adopted[rank].set_value(std::move(fd));
      });
    std::promise<void> done;
    EXPECT_TRUE(couple[caller].call_lifeline(
        1 - caller, Deadline(seconds(20)), [&](Fd fd) { adopted[caller].set_value(std::move(fd)); },
        [&](const std::optional<Unmade>& unmade) {
          EXPECT_FALSE(unmade);
          done.set_value();
        }));
    done.get_future().get();
    Fd a = adopted[0].get_future().get(), b = adopted[1].get_future().get();
    EXPECT_TRUE(are_joined(a, b));
    // Who dials it later finds that it is there.
    for (Rank rank : {0, 1}) {
      Dials dials(couple[rank], 3, Deadline(seconds(20)));
      dials.dial_lifeline(1 - rank);
      std::optional<Dials::Made> made = dials.next(seconds(20));
      ASSERT_TRUE(made);
      EXPECT_FALSE(made->fd);
    }
  }
}

}  // namespace
}  // namespace ringcoll
