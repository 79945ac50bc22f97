// Connections that either of a pair may need first.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/error_testing.h"
#include "connect/connector.h"
#include "net/event_loop.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

using testing::error_of;

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

/// A connection that is being made.
class Coming {
 public:
  Coming(Connector& connector, const Connector::Wanted& wanted, Deadline deadline) {
    auto end = std::make_shared<std::promise<End>>();
    end_ = end->get_future();
    connector.begin(wanted, deadline, [end](Fd fd, const std::optional<Unmade>& unmade) {
      end->set_value({std::move(fd), unmade});
    });
  }
  auto wait_for(Duration limit) const { return end_.wait_for(limit); }
  Fd get() {
    auto [fd, unmade] = end_.get();
    if (unmade) throw Error(unmade->why);
    return std::move(fd);
  }

 private:
  using End = std::pair<Fd, std::optional<Unmade>>;
  std::future<End> end_;
};

Coming begin(Connector& connector, Rank peer, GroupNumber group,
             Deadline deadline = Deadline(seconds(20))) {
  return {connector, {peer, kMessageChannel, group, Connector::Ends::kEither}, deadline};
}

/// Of one that the peer makes: this rank does nothing until it is there.
Fd taken(Connector& connector, Rank peer, GroupNumber group) {
  for (Deadline deadline(seconds(20)); connector.peers_with_messages(group).empty();) {
    check(!deadline.passed(), Code::kTimeout, "no connection comes");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  auto made = begin(connector, peer, group);
  EXPECT_EQ(made.wait_for(Duration::zero()), std::future_status::ready) << "it is there";
  EXPECT_EQ(connector.peers_with_messages(group), std::vector<Rank>());
  return made.get();
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

TEST(Either, IsTakenByBoth) {
  Couple couple;
  for (Rank caller : {0, 1}) {
    auto group = static_cast<GroupNumber>(caller + 5);
    std::atomic<int> news{0};
    couple[1 - caller].listen_for_messages(group, [&] { news++; });
    Fd mine = begin(couple[caller], 1 - caller, group).get();
    Fd theirs = taken(couple[1 - caller], caller, group);
    EXPECT_TRUE(are_joined(mine, theirs));
    EXPECT_GE(news, 1);
    couple[1 - caller].end_messages(group);
  }
}

// However the two meet: one connection is made, and the same on both sides.
TEST(Either, OfBothAtOnceIsOne) {
  Couple couple;
  for (GroupNumber group = 1; group <= 200; group++) {
    std::vector<std::future<Fd>> ends;
    for (Rank rank : {0, 1})
      ends.push_back(std::async(std::launch::async, [&, rank] {
        if (static_cast<Rank>(group % 2) == rank)
          std::this_thread::sleep_for(std::chrono::microseconds(group % 40 * 20));
        return begin(couple[rank], 1 - rank, group).get();
      }));
    Fd a = ends[0].get(), b = ends[1].get();
    ASSERT_TRUE(are_joined(a, b)) << group;
    for (Rank rank : {0, 1}) {
      couple[rank].end_messages(group);
      couple[rank].forget(group);
    }
  }
}

TEST(Either, ThatNobodyTookEndsWithItsGroup) {
  Couple couple;
  Fd mine = begin(couple[1], 0, 7).get();
  couple[0].end_messages(7);
  couple[0].forget(7);
  char byte = 0;
  EXPECT_THROW(recv_all(mine.get(), &byte, 1, Deadline(seconds(20)), "test"), Error);
  EXPECT_TRUE(begin(couple[1], 0, 8).get()) << "others do not mind";
}

// Its group goes next, with all that it refers to.
TEST(Either, WhoListensIsForgottenWhenTheGroupEnds) {
  Couple couple;
  auto listener = std::make_shared<std::atomic<int>>(0);
  std::weak_ptr<std::atomic<int>> left = listener;
  couple[0].listen_for_messages(7, [listener = std::move(listener)] { (*listener)++; });
  Fd mine = begin(couple[1], 0, 7).get();
  EXPECT_TRUE(taken(couple[0], 1, 7));
  EXPECT_FALSE(left.expired());
  couple[0].end_messages(7);
  Deadline deadline(seconds(20));  // the thread that told of the connection may still hold it
  while (!left.expired() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  EXPECT_TRUE(left.expired());
}

// To one that has left the group, or ended.
TEST(Either, ThatCannotBeMadeSaysWhy) {
  Couple couple;
  couple[0].forget(3);
  Error left = error_of([&] { begin(couple[1], 0, 3).get(); });
  EXPECT_EQ(left.code(), Code::kPeerLost) << left.what();
  EXPECT_EQ(left.rank(), 0);
  couple.connectors[0].reset();
  Error ended = error_of([&] { begin(couple[1], 0, 4).get(); });
  EXPECT_EQ(ended.code(), Code::kPeerLost) << ended.what();
  EXPECT_EQ(ended.rank(), 0);
}

// One that does not answer is no reason to wait.
TEST(Either, EndsAtOnceThoughThePeerDoesNotAnswer) {
  EventLoop loop("test");
  Connector caller(0, on_loopback(), loop);
  std::string offers = caller.offers();
  Connector other(1, on_loopback(), loop);  // listens, and lets nobody in yet
  caller.set_peers({offers, other.offers()}, "sesame");
  auto start = Clock::now();
  auto made = begin(caller, 1, 5, Deadline(seconds(60)));
  caller.end_messages(5);
  caller.forget(5);
  EXPECT_THROW(made.get(), Error);
  begin(caller, 1, 6, Deadline(seconds(60)));
  caller.stop();
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
}

// As those of ranks that are stopped: more of them than are dialled at a time.
TEST(Either, DoesNotWaitForPeersThatDoNotAnswer) {
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
  std::optional<Coming> last;
  for (Rank peer = 1; peer < kSize; peer++)
    last.emplace(begin(caller, peer, 5, Deadline(seconds(60))));
  EXPECT_TRUE(are_joined(last->get(), taken(other, 0, 5)));
  EXPECT_LT(to_seconds(Clock::now() - start), 15);
  caller.end_messages(5);
}

/// Begins the lifeline, and waits for the outcome.
std::optional<Unmade> try_lifeline(Connector& connector, Rank peer, double patience,
                                   const std::function<void(Fd)>& adopt) {
  std::promise<std::optional<Unmade>> done;
  connector.begin({peer, kLifelineChannel, kNoGroup, Connector::Ends::kEither},
                  Deadline(seconds(patience)), [&](Fd fd, const std::optional<Unmade>& unmade) {
                    if (fd) adopt(std::move(fd));
                    done.set_value(unmade);
                  });
  return done.get_future().get();
}

TEST(Lifeline, SaysWhatHasBecomeOfThePeer) {
  Couple couple;
  EventLoop loop("test");
  Connector silent(2, on_loopback(), loop);
  std::vector<std::string> offers = {couple[0].offers(), couple[1].offers(), silent.offers()};
  Connector caller(0, on_loopback(), loop);
  caller.set_peers(offers, "sesame");
  couple.connectors[1].reset();
  auto ended = try_lifeline(caller, 1, 20, [](const Fd&) {});
  auto stopped = try_lifeline(caller, 2, 0.2, [](const Fd&) {});
  ASSERT_TRUE(ended && stopped);
  EXPECT_EQ(ended->peer, Unmade::PeerState::kEnded) << ended->why.what();
  EXPECT_EQ(stopped->peer, Unmade::PeerState::kUnknown) << stopped->why.what();
  EXPECT_EQ(stopped->why.code(), Code::kTimeout);
}

// For the thread sanitizer: the thread that connects reads the networks meanwhile.
TEST(Lifeline, IsMadeWhileTheNetworksAreSettled) {
  Couple couple;
  std::vector<std::promise<bool>> made(2);
  for (Rank rank : {0, 1}) {
    couple[rank].begin(
        {1 - rank, kLifelineChannel, kNoGroup, Connector::Ends::kEither}, Deadline(seconds(20)),
        [&made, rank](const Fd&, const auto& unmade) { made[rank].set_value(!unmade); });
    couple[rank].settle_networks(std::vector<std::string>(2), [](Rank) { return "a host"; });
  }
  for (auto& end : made) EXPECT_TRUE(end.get_future().get());
}

TEST(Lifeline, IsAdopted) {
  for (Rank caller : {0, 1}) {
    Couple couple;
    std::vector<std::promise<Fd>> adopted(2);
    for (Rank rank : {0, 1})
      couple[rank].adopt_lifelines([&, rank](Rank peer, Fd fd) {
        EXPECT_EQ(peer, 1 - rank);
        adopted[rank].set_value(std::move(fd));
      });
    EXPECT_FALSE(try_lifeline(couple[caller], 1 - caller, 20,
                              [&](Fd fd) { adopted[caller].set_value(std::move(fd)); }));
    Fd a = adopted[0].get_future().get(), b = adopted[1].get_future().get();
    EXPECT_TRUE(are_joined(a, b));
    // Who dials it later finds that it is there.
    for (Rank rank : {0, 1})
      EXPECT_FALSE(couple[rank].dial(1 - rank, kLifelineChannel, Deadline(seconds(20))));
  }
}

// Of several groups, each with its own deadline. The first to be made is everybody's.
TEST(Lifeline, ThatSeveralWantIsMadeOnce) {
  Couple couple;
  std::atomic<int> adopted{0}, made{0};
  couple[1].adopt_lifelines([&](Rank, const Fd&) { adopted++; });
  std::vector<std::future<std::optional<Unmade>>> all;
  for (int i = 0; i < 8; i++)
    all.push_back(std::async(std::launch::async, [&, i] {
      return try_lifeline(couple[0], 1, 20 + i, [&](const Fd&) { made++; });
    }));
  for (auto& one : all) EXPECT_FALSE(one.get());
  EXPECT_EQ(made, 1);
  EXPECT_EQ(adopted, 1);
}

// The first attempt, which the second waits for, gives up.
TEST(Lifeline, ThatOneGivesUpIsMadeByAnother) {
  EventLoop loop("test");
  Connector caller(0, on_loopback(), loop);
  Connector other(1, on_loopback(), loop);  // lets nobody in yet
  std::vector<std::string> offers = {caller.offers(), other.offers()};
  caller.set_peers(offers, "sesame");
  auto begun = [&](double patience) {
    return std::async(std::launch::async, [&, patience] {
      return try_lifeline(caller, 1, patience, [](const Fd&) {});
    });
  };
  auto first = begun(0.3);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto second = begun(20);
  auto late = first.get();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->why.code(), Code::kTimeout) << late->why.what();
  other.adopt_lifelines([](Rank, const Fd&) {});
  other.set_peers(offers, "sesame");
  EXPECT_FALSE(second.get());
}

}  // namespace
}  // namespace ringcoll
