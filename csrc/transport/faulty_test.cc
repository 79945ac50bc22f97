#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "transport/faulty_testing.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr size_t kArenaBytes = 1 << 20;

class Faulty : public ::testing::Test {
 protected:
  void break_link(Rank rank, Faults faults) {
    auto& link = world_[rank].links[static_cast<size_t>(1 - rank)];
    link = std::make_unique<FaultyEndpoint>(std::move(link), faults);
  }
  Endpoint& at(Rank rank) { return world_[rank][1 - rank]; }

  // 50 messages each way, or the error that ended them.
  void exchange() {
    auto run = [&](Rank me) {
      std::byte* out = world_[me].arena.data();
      for (uint64_t n = 1; n <= 50; n++) {
        uint64_t bytes = n % 4 ? n : 10000;
        fill(out, bytes, n);
        send(at(me), envelope_of(n), out, bytes);
        View view = receive(at(me), out + kArenaBytes / 2, bytes);
        check(view.envelope == envelope_of(n) && filled(view.data, view.bytes, n), Code::kInternal,
              "message {} is damaged", n);
        at(me).release();
        complete(at(me), n);
      }
    };
    auto other = std::async(std::launch::async, run, 1);
    run(0);
    other.get();
  }

  World world_{*find_transport("loopback"), 2, kArenaBytes};
};

TEST_F(Faulty, WithoutFaultsChangesNothing) {
  break_link(0, {});
  exchange();
  auto& link = static_cast<FaultyEndpoint&>(at(0));
  EXPECT_EQ(link.messages_sent(), 50u);
  EXPECT_EQ(link.messages_received(), 50u);
}

TEST_F(Faulty, WhatTheContractAllowsIsSurvived) {
  break_link(0, {.refuse_send_every = 2, .hide_recv_every = 3, .lag_completed_polls = 2});
  break_link(1, {.repeat_polls = 2});
  exchange();
}

TEST_F(Faulty, DelaysDelay) {
  break_link(0, {.delay_send = milliseconds(5), .delay_recv = milliseconds(5)});
  auto start = Clock::now();
  std::byte data[8] = {};
  send(at(0), {}, data, sizeof data);
  send(at(1), {}, data, sizeof data);
  receive(at(0));
  EXPECT_GE(Clock::now() - start, milliseconds(10));
}

TEST_F(Faulty, FailsTheNthAndStaysBroken) {
  break_link(0, {.fail_send = 3, .code = Code::kPeerLost, .rank = 1});
  std::byte data[8] = {};
  for (int i = 0; i < 2; i++) send(at(0), {}, data, sizeof data);
  View view;
  for (auto call : {+[](Endpoint& link, View* view) { link.try_send({}, view, 1); },
                    +[](Endpoint& link, View* view) { link.try_recv(nullptr, 0, view); },
                    +[](Endpoint& link, View*) { link.completed(); }}) {
    try {
      call(at(0), &view);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kPeerLost);
      EXPECT_EQ(error.rank(), 1);
    }
  }
  for (int i = 0; i < 2; i++) receive(at(1));
  EXPECT_FALSE(at(1).try_recv(nullptr, 8, &view)) << "the third was not sent";
}

TEST_F(Faulty, FailsTheNthReceive) {
  break_link(0, {.fail_recv = 2});
  std::byte data[8] = {};
  for (int i = 0; i < 2; i++) send(at(1), {}, data, sizeof data);
  View view;
  EXPECT_TRUE(at(0).try_recv(nullptr, 8, &view));
  at(0).release();
  EXPECT_THROW(at(0).try_recv(nullptr, 8, &view), Error);
}

TEST(FaultyTransport, MakesFaultyLinksToTheChosenPeers) {
  Switchboard board;
  const TransportRow& row = *find_transport("loopback");
  TestRank other(row, 1, 2, board, 4096);
  TestRank rank(row, 0, 2, board, 4096);
  rank.transport = std::make_unique<FaultyTransport>(
      std::move(rank.transport), [](Rank peer) { return Faults{.fail_send = uint64_t(peer)}; });
  rank.connect(1, other.transport->address());
  EXPECT_THROW(rank[1].try_send({}, nullptr, 0), Error);
}

}  // namespace
}  // namespace ringcoll
