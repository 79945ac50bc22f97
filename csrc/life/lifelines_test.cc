#include "life/lifelines.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "life/lifelines_testing.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

using testing::all_ranks, testing::bytes_of, testing::contains, testing::describe, testing::join,
    testing::kMagicWord, testing::kVersionWord, testing::make_pair, testing::make_raw_pair,
    testing::mesh, testing::Node, testing::second_word, testing::soon;

TEST(Lifelines, AGoodbyeIsNoError) {
  auto nodes = mesh(3);
  EXPECT_TRUE(nodes[0]->lines->has(2));
  EXPECT_FALSE(nodes[0]->health->gone(2));
  nodes[2]->end();
  EXPECT_TRUE(soon([&] { return nodes[0]->health->gone(2) && nodes[1]->health->gone(2); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the end of the stream follows
  EXPECT_FALSE(nodes[0]->health->poisoned());
  EXPECT_FALSE(nodes[0]->health->gone(1));
  EXPECT_TRUE(nodes[0]->lines->has(2)) << "there is no other to come";
  Error error = nodes[0]->health->blame(2, "allreduce #7", seconds(5));
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_EQ(error.rank(), 2);
}

TEST(Lifelines, AnEndWithoutAGoodbyeIsPeerLost) {
  auto ends = make_pair();
  Node third(0, 3);
  third.lines->add(2, std::move(ends[0]));
  ends[1].reset();
  ASSERT_TRUE(soon([&] { return third.poisons == 1; }));
  Error error = third.health->error();
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_EQ(error.rank(), 2);
  EXPECT_TRUE(contains(error, "rank 2 (pid 7 on here)")) << error.what();
  EXPECT_TRUE(third.health->gone(2));
}

TEST(Lifelines, TheFirstErrorReachesAll) {
  auto nodes = mesh(4);
  nodes[2]->health->poison(Error(Code::kMismatch, "they disagree", 1));
  nodes[2]->health->poison(Error(Code::kInternal, "too late"));
  for (auto& node : nodes) {
    ASSERT_TRUE(soon([&] { return node->poisons == 1; }));
    Error error = node->health->error();
    EXPECT_EQ(error.code(), Code::kMismatch);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_STREQ(error.what(), "they disagree");
  }
  // What is said once is said once: nobody hears an echo.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (auto& node : nodes) EXPECT_EQ(node->poisons, 1);
}

TEST(Lifelines, AnErrorIsPassedOnAlongAChain) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (Rank rank = 0; rank < 5; rank++) nodes.push_back(std::make_unique<Node>(rank, 5));
  for (Rank rank = 0; rank < 4; rank++) join(*nodes[rank], rank, *nodes[rank + 1], rank + 1);
  nodes[0]->health->poison(Error(Code::kTransport, std::string(100000, 'x')));
  ASSERT_TRUE(soon([&] { return nodes[4]->poisons == 1; }));
  EXPECT_EQ(std::string(nodes[4]->health->error().what()), std::string(4096, 'x'));
}

TEST(Lifelines, ALateLineHearsTheFirstError) {
  Node a(0, 2), b(1, 2);
  a.health->poison(Error(Code::kAborted, "stop"));
  join(a, 0, b, 1);
  ASSERT_TRUE(soon([&] { return b.poisons == 1; }));
  EXPECT_EQ(b.health->error().code(), Code::kAborted);
}

TEST(Lifelines, ErrorsOfManyThreadsAreOne) {
  auto nodes = mesh(4);
  std::vector<std::thread> threads;
  for (auto& node : nodes)
    for (int t = 0; t < 2; t++)
      threads.emplace_back([&node] { node->health->poison(Error(Code::kInternal, "mine")); });
  for (auto& thread : threads) thread.join();
  for (auto& node : nodes) EXPECT_TRUE(soon([&] { return node->poisons == 1; }));
}

// ---- What is no message ----

// Its rank may have failed while it made the line, and the cause is on its way by others.
TEST(Lifelines, OneThatClosesBeforeAWordIsNotTheFirstToBlame) {
  for (bool told : {true, false}) {
    Node node(0, 3), other(2, 3);
    join(node, 0, other, 2);
    auto ends = make_pair();
    node.lines->add(1, std::move(ends[0]));
    ends[1].reset();
    ASSERT_TRUE(soon([&] { return node.health->gone(1); }));
    if (told) other.health->poison(Error(Code::kMismatch, "the cause", 2));
    ASSERT_TRUE(soon([&] { return node.health->poisoned(); }));
    EXPECT_EQ(node.health->error().code(), told ? Code::kMismatch : Code::kPeerLost);
    EXPECT_EQ(node.health->error().rank(), told ? 2 : 1);
  }
}

// Nor does it disturb the mesh's end.
TEST(Lifelines, MayEndBeforeOneIsBlamed) {
  std::atomic<int> poisons{0};
  EventLoop loop("test");
  {
    Lifelines lines(0, 2, loop, describe);
    Health health(lines, {0, {0, 1}, [&] { poisons++; }, describe});
    auto ends = make_pair();
    lines.add(1, std::move(ends[0]));
    ends[1].reset();
    ASSERT_TRUE(soon([&] { return health.gone(1); }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(poisons, 0);
}

TEST(Lifelines, RefusesWhatIsNoMessage) {
  std::vector<std::string> bad = {
      std::string(32, 'x'),
      std::string(32, 0),
      bytes_of({kMagicWord, second_word(1, 1, 0), 0, 0, 0, 0, 0, 0}),              // version
      bytes_of({kMagicWord, second_word(kVersionWord, 10, 0), 0, 0, 0, 0, 0, 0}),  // type
      bytes_of({kMagicWord, second_word(kVersionWord, 1, 5), 0, 0, 0, 0, 0,
                0}),  // a text with a goodbye
      bytes_of(
          {kMagicWord, second_word(kVersionWord, 2, 5000), 1, 0, 0, 0, 0, 0}),     // text too long
      bytes_of({kMagicWord, second_word(kVersionWord, 2, 0), 99, 0, 0, 0, 0, 0}),  // code
      bytes_of({kMagicWord, second_word(kVersionWord, 2, 0), 1, 2, 0, 0, 0, 0}),   // rank 2 of 2
      bytes_of(
          {kMagicWord, second_word(kVersionWord, 4, 0), 0, 0xfffffffe, 0, 0, 0, 0}),  // rank -2
  };
  for (const std::string& bytes : bad) {
    Node node(0, 2);
    auto ends = make_pair();
    node.lines->add(1, std::move(ends[0]));
    send_all(ends[1].get(), bytes.data(), bytes.size(), Deadline(seconds(5)), "test");
    ASSERT_TRUE(soon([&] { return node.poisons == 1; }));
    EXPECT_EQ(node.health->error().code(), Code::kTransport);
    EXPECT_EQ(node.health->error().rank(), 1);
  }
}

TEST(Lifelines, AMessageMayComeInPieces) {
  Node node(0, 2);
  auto ends = make_pair();
  node.lines->add(1, std::move(ends[0]));
  std::string poison =
      bytes_of({kMagicWord, second_word(kVersionWord, 2, 4), RC_TIMEOUT, 1, 0, 0, 0, 0}) + "slow";
  for (char byte : poison) {
    EXPECT_FALSE(node.health->poisoned());
    send_all(ends[1].get(), &byte, 1, Deadline(seconds(5)), "test");
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  ASSERT_TRUE(soon([&] { return node.poisons == 1; }));
  EXPECT_STREQ(node.health->error().what(), "slow");
}

// ---- Whom to blame ----

TEST(Blame, WhoDoesNotAnswer) {
  Node node(0, 2);
  auto ends = make_pair();  // nobody reads the other end
  node.lines->add(1, std::move(ends[0]));
  auto start = Clock::now();
  Error error = node.health->blame(1, "allreduce #41", seconds(0.1));
  EXPECT_LT(to_seconds(Clock::now() - start), 5);
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_TRUE(contains(error, "allreduce #41: rank 1 (pid 7 on here)")) << error.what();
  EXPECT_TRUE(contains(error, "does not answer"));
  EXPECT_FALSE(node.health->poisoned()) << "raising it is the caller's choice";
}

/// What a rank says of whom it waits for in vain; nobody keeps it waiting for its grace to pass.
Error blamed_by(Node& node, Rank peer) {
  auto start = Clock::now();
  Error error = node.health->blame(peer, "allreduce #3", seconds(20));
  EXPECT_LT(to_seconds(Clock::now() - start), 10) << error.what();
  return error;
}

TEST(Blame, WhoIsAliveButElsewhere) {
  auto nodes = mesh(2);
  Error error = blamed_by(*nodes[0], 1);
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_TRUE(contains(error, "alive")) << error.what();
}

TEST(Blame, TheEndOfTheChain) {
  auto nodes = mesh(4);
  nodes[1]->health->set_waiting_for(2);
  nodes[2]->health->set_waiting_for(3);
  Error error = blamed_by(*nodes[0], 1);
  EXPECT_EQ(error.rank(), 3);
  EXPECT_TRUE(contains(error, "alive"));
  nodes[2]->health->set_waiting_for(kNobody);
  EXPECT_EQ(blamed_by(*nodes[0], 1).rank(), 2) << "what was said before does not count";
}

// Blamed is the rank whose wait closes the circle, be the one that asks in it or not.
TEST(Blame, ACircle) {
  struct Case {
    std::vector<Rank> waits_for;  // by rank
    Rank blamed;
    const char* says;
  };
  for (const Case& c : {Case{{1, 0}, 1, "rank 1 (pid 7 on here) for rank 0"},
                        Case{{1, 2, 0}, 2, "rank 2 (pid 7 on here) for rank 0"},
                        Case{{1, 2, 3, 2}, 3, "rank 3 (pid 7 on here) for rank 2"}}) {
    auto nodes = mesh(static_cast<Rank>(c.waits_for.size()));
    for (size_t rank = 0; rank < nodes.size(); rank++)
      nodes[rank]->health->set_waiting_for(c.waits_for[rank]);
    Error error = blamed_by(*nodes[0], 1);
    EXPECT_EQ(error.code(), Code::kTimeout);
    EXPECT_EQ(error.rank(), c.blamed);
    EXPECT_TRUE(contains(error, "circle") && contains(error, c.says)) << error.what();
  }
}

TEST(Blame, WhoHasLeftWhileAnotherWaitsForIt) {
  auto nodes = mesh(3);
  nodes[1]->health->set_waiting_for(2);
  nodes[2]->end();
  ASSERT_TRUE(soon([&] { return nodes[0]->health->gone(2); }));
  Error error = blamed_by(*nodes[0], 1);
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_EQ(error.rank(), 2);
  EXPECT_TRUE(contains(error, "allreduce #3: rank 2 (pid 7 on here) has left")) << error.what();
  // Unless there is an error already: it may be why it has left.
  nodes[1]->health->poison(Error(Code::kMismatch, "they disagree", 1));
  ASSERT_TRUE(soon([&] { return nodes[0]->poisons == 1; }));
  for (Rank peer : {1, 2}) EXPECT_STREQ(blamed_by(*nodes[0], peer).what(), "they disagree");
}

// While a peer is asked whether it is alive, it may leave, or something may go wrong, there or
// here.
TEST(Blame, WhatHappensWhileAPeerIsAsked) {
  std::string goodbye = bytes_of({kMagicWord, second_word(kVersionWord, 1, 0), 0, 0, 0, 0, 0, 0});
  std::string poison =
      bytes_of({kMagicWord, second_word(kVersionWord, 2, 4), RC_MISMATCH, 1, 0, 0, 0, 0}) + "bad!";
  struct Case {
    std::string answer;  // none: the error is of this rank
    Code code;
    const char* says;
  };
  for (const Case& c : {Case{goodbye, Code::kPeerLost, "has left"},
                        Case{poison, Code::kMismatch, "bad!"}, Case{"", Code::kMismatch, "bad!"}}) {
    Node node(0, 2);
    auto ends = make_pair();
    node.lines->add(1, std::move(ends[0]));
    std::thread peer([&] {
      char ping[32];
      recv_all(ends[1].get(), ping, sizeof ping, Deadline(seconds(20)), "test");
      send_all(ends[1].get(), c.answer.data(), c.answer.size(), Deadline(seconds(5)), "test");
      if (c.answer.empty()) node.health->poison(Error(Code::kMismatch, "bad!", 1));
    });
    Error error = blamed_by(node, 1);
    peer.join();
    EXPECT_EQ(error.code(), c.code);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_TRUE(contains(error, c.says)) << error.what();
  }
}

// Both come at once, and a first group takes its time to hear what the second has to.
TEST(Blame, WhoHasSaidWhyItLeavesHasNotJustLeft) {
  Node node(0, 2);
  std::atomic<bool> goes_on = false;
  auto wait = [&] { soon([&] { return goes_on.load(); }); };
  Health slow(*node.lines, {5, {0, 1}, wait, describe});
  Health other(*node.lines, {6, {0, 1}, [] {}, describe});
  auto ends = make_pair();
  node.lines->add(1, std::move(ends[0]));
  std::string said;
  for (uint32_t group : {5, 6})
    said +=
        bytes_of({kMagicWord, second_word(kVersionWord, 2, 4), RC_MISMATCH, 1, 0, 0, group, 0}) +
        "bad!";
  said += bytes_of({kMagicWord, second_word(kVersionWord, 1, 0), 0, 0, 0, 0, 0, 0});
  send_all(ends[1].get(), said.data(), said.size(), Deadline(seconds(5)), "test");
  ASSERT_TRUE(soon([&] { return other.gone(1); }));
  Error error = other.blame(1, "waiting", Duration::zero());
  goes_on = true;
  EXPECT_EQ(error.code(), Code::kMismatch) << error.what();
}

TEST(Blame, WhoHasNoLineAndIsNotReported) {
  Node a(0, 3), b(1, 3);
  join(a, 0, b, 1);  // no line from 0 to 2
  b.health->set_waiting_for(2);
  Error error = a.health->blame(1, "allreduce #3", seconds(1));
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.rank(), 2);
}

TEST(Blame, AFirstHandReportWins) {
  Node a(0, 3), b(1, 3);
  join(a, 0, b, 1);
  b.health->set_waiting_for(2);
  std::thread reporter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    b.health->poison(Error(Code::kPeerLost, "2 is dead", 2));
  });
  Error error = blamed_by(a, 1);
  reporter.join();
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_STREQ(error.what(), "2 is dead");
}

// Those who have a line to it ask it for all of their grace before they report.
TEST(Blame, AFirstHandReportIsWaitedForLongerThanAnAnswer) {
  Node a(0, 3), b(1, 3);
  join(a, 0, b, 1);
  b.health->set_waiting_for(2);
  std::thread reporter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2200));
    b.health->poison(Error(Code::kTimeout, "2 does not answer", 2));
  });
  Error error = a.health->blame(1, "allreduce #3", seconds(2));
  reporter.join();
  EXPECT_STREQ(error.what(), "2 does not answer");
}

TEST(Blame, APeerThatNeverReadsBlocksNobody) {
  Node node(0, 3);
  auto ends = make_pair();
  int small = 1;
  setsockopt(ends[0].get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  node.lines->add(1, std::move(ends[0]));
  auto start = Clock::now();
  for (int i = 0; i < 500; i++) node.health->blame(1, "test", seconds(0.0001));
  node.health->poison(Error(Code::kInternal, std::string(4096, 'x')));
  node.end();
  EXPECT_LT(to_seconds(Clock::now() - start), 10);
}

// ---- Processes ----

/// Ranks as processes, forked before there is any thread, with a lifeline for each pair. A child
/// runs `body` and tells its parent one line of text.
class Processes {
 public:
  using Body = std::function<std::string(Rank, Health&)>;

  Processes(Rank size, const Body& body) : size_(size) {
    std::vector<std::map<Rank, int>> lines(size);
    for (Rank a = 0; a < size; a++)
      for (Rank b = a + 1; b < size; b++) {
        auto [one, other] = make_raw_pair();
        lines[a][b] = one;
        lines[b][a] = other;
      }
    for (Rank rank = 0; rank < size; rank++) {
      auto [ours, theirs] = make_raw_pair();
      pid_t pid = fork();
      if (pid == 0) {
        close(ours);
        std::map<Rank, Fd> mine;
        for (auto [peer, fd] : std::exchange(lines[rank], {})) mine[peer] = Fd(fd);
        close_all(lines);
        run(rank, std::move(mine), theirs, body);
      }
      pids_.push_back(pid);
      reports_.emplace_back(ours);
      close(theirs);
    }
    close_all(lines);
  }
  ~Processes() {
    for (pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  void signal(Rank rank, int number) { kill(pids_[rank], number); }
  /// The next line of a rank.
  std::string next(Rank rank, double limit_s = 20) {
    std::string text;
    Deadline deadline(seconds(limit_s));
    for (char byte;;) {
      recv_all(reports_[rank].get(), &byte, 1, deadline, "a child");
      if (byte == '\n') return text;
      text += byte;
    }
  }

 private:
  static void close_all(const std::vector<std::map<Rank, int>>& lines) {
    for (const auto& of_rank : lines)
      for (auto [peer, fd] : of_rank) close(fd);
  }
  [[noreturn]] void run(Rank rank, std::map<Rank, Fd> fds, int report, const Body& body) {
    auto say = [&](std::string text) {
      text += '\n';
      send_all(report, text.data(), text.size(), Deadline(seconds(5)), "parent");
    };
    {
      EventLoop loop("test");
      Lifelines lines(rank, size_, loop, describe);
      Health health(lines, {0, all_ranks(size_), [] {}, describe});
      for (auto& [peer, fd] : fds) lines.add(peer, std::move(fd));
      say("up");
      say(body(rank, health));
    }
    _exit(0);
  }

  Rank size_;
  std::vector<pid_t> pids_;
  std::vector<Fd> reports_;
};

TEST(LifelineProcesses, SurvivorsOfASigkillNameTheDead) {
  Processes ranks(3, [](Rank, Health& health) {
    soon([&] { return health.poisoned(); });
    Error error = health.error();
    return fmt::format("{} {}", name_of(error.code()), error.rank());
  });
  for (Rank rank = 0; rank < 3; rank++) EXPECT_EQ(ranks.next(rank), "up");
  auto start = Clock::now();
  ranks.signal(1, SIGKILL);
  EXPECT_EQ(ranks.next(0), "PeerLost 1");
  EXPECT_EQ(ranks.next(2), "PeerLost 1");
  EXPECT_LT(to_seconds(Clock::now() - start), 1);
}

TEST(LifelineProcesses, AStoppedOneIsBlamedByAllWhoWaitForIt) {
  Processes ranks(3, [](Rank rank, Health& health) -> std::string {
    if (rank == 2) {
      soon([&] { return health.poisoned(); });
      return "woken";
    }
    // 0 waits for 1, which waits for 2.
    health.set_waiting_for(rank + 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    Error error = health.blame(rank + 1, "allreduce #1", seconds(2));
    health.poison(error);
    return fmt::format("{} {}", name_of(error.code()), error.rank());
  });
  EXPECT_EQ(ranks.next(2), "up");
  ranks.signal(2, SIGSTOP);
  for (Rank rank = 0; rank < 2; rank++) {
    EXPECT_EQ(ranks.next(rank), "up");
    EXPECT_EQ(ranks.next(rank), "Timeout 2");
  }
  ranks.signal(2, SIGCONT);
  EXPECT_EQ(ranks.next(2), "woken") << "it hears what was decided meanwhile";
}

TEST(LifelineProcesses, AnExitWithAGoodbyeIsNoError) {
  Processes ranks(2, [](Rank rank, Health& health) -> std::string {
    if (rank == 1) return "done";
    soon([&] { return health.gone(1); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return health.poisoned() ? health.error().what() : "fine";
  });
  EXPECT_EQ(ranks.next(1), "up");
  EXPECT_EQ(ranks.next(1), "done");
  EXPECT_EQ(ranks.next(0), "up");
  EXPECT_EQ(ranks.next(0), "fine");
}

}  // namespace
}  // namespace ringcoll
