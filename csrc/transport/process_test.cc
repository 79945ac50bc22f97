// Two processes, as in real life: addresses exchanged, memory mapped across, one of them killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "shm/peer_memory.h"
#include "shm/peer_memory_testing.h"
#include "transport/verbs/device_testing.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr size_t kArenaBytes = 1 << 20;

// Rank 0 is this process, rank 1 a child that is always ended and waited for.
class Processes : public ::testing::TestWithParam<std::string_view> {
 protected:
  using Body = std::function<bool(Endpoint&, SharedMemory&)>;

  void SetUp() override {
    const TransportRow& row = *find_transport(GetParam());
    Probe probe = row.probe(test_config());
    if (!probe.usable) GTEST_SKIP() << row.name << ": " << probe.detail;
  }
  void TearDown() override { kill_child(); }

  /// Runs `body` as rank 1; the child's status is 0 if it returns true.
  void start(const Body& body) {
    Switchboard board;
    std::vector<int> inherited;  // the child's ends, which are no Fds: those are not a child's
    for (uint32_t i = 0; i < test_config().tcp_streams; i++) {
      auto [here, there] = connected_sockets();
      board.put(0, 1, i, std::move(here));
      inherited.push_back(::dup(there.get()));
    }
    auto [here, there] = connected_sockets();
    inherited.push_back(::dup(there.get()));
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        Switchboard own;
        Fd pipe(inherited.back());
        for (uint32_t i = 0; i + 1 < inherited.size(); i++) own.put(1, 0, i, Fd(inherited[i]));
        auto rank = connect(1, own, pipe);
        ::_exit(body((*rank)[0], rank->arena) ? 0 : 1);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        ::_exit(2);
      }
    }
    there.reset();
    for (int fd : inherited) ::close(fd);
    rank_ = connect(0, board, here);
  }

  static std::unique_ptr<TestRank> connect(Rank me, Switchboard& board, Fd& pipe) {
    auto rank = std::make_unique<TestRank>(*find_transport(GetParam()), me, 2, board, kArenaBytes);
    std::string theirs = exchange(pipe.get(), rank->transport->address());
    rank->connect(1 - me, theirs);
    rank->each(&Endpoint::try_establish);
    rank->each(&Endpoint::try_prove);
    exchange(pipe.get(), "connected");
    return rank;
  }

  static std::string exchange(int pipe, std::string mine) {
    char size = static_cast<char>(mine.size());
    mine.insert(mine.begin(), size);
    invariant(
        ::send(pipe, mine.data(), mine.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(mine.size()),
        "the other process has gone");
    invariant(::recv(pipe, &size, 1, MSG_WAITALL) == 1, "the other process has gone");
    std::string theirs(static_cast<unsigned char>(size), '\0');
    invariant(::recv(pipe, theirs.data(), theirs.size(), MSG_WAITALL) ==
                  static_cast<ssize_t>(theirs.size()),
              "the other process has gone");
    return theirs;
  }

  int wait_for_child() {
    int status = -1;
    ::waitpid(std::exchange(child_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void kill_child() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    wait_for_child();
  }
  Endpoint& link() { return (*rank_)[1]; }
  std::byte* arena() { return rank_->arena.data(); }

  pid_t child_ = 0;
  std::unique_ptr<TestRank> rank_;
};

// The software device of tests is one of a single process.
std::vector<std::string_view> names() {
  if (rdma_of_the_host()) return {"shm", "tcp", "verbs"};
  return {"shm", "tcp"};
}

INSTANTIATE_TEST_SUITE_P(Transports, Processes, ::testing::ValuesIn(names()),
                         [](const auto& info) { return std::string(info.param); });

// One message there, one back, of all kinds of sizes.
bool ping_pong(Endpoint& link, std::byte* arena, bool first) {
  std::byte* in = arena + (kArenaBytes / 2);
  for (uint64_t n = 1; n <= 500; n++) {
    uint64_t bytes = n % 50 == 0 ? 300000 : n * 7 % 1000;
    for (bool sending : {first, !first}) {
      if (sending) {
        fill(arena, bytes, n);
        send(link, envelope_of(n), arena, bytes);
        complete(link, n);
      } else {
        View view = receive(link, in, bytes);
        if (view.bytes != bytes || !filled(view.data, bytes, n)) return false;
        link.release();
      }
    }
  }
  return true;
}

TEST_P(Processes, PingPong) {
  start([](Endpoint& link, SharedMemory& arena) { return ping_pong(link, arena.data(), false); });
  EXPECT_TRUE(ping_pong(link(), arena(), true));
  EXPECT_EQ(wait_for_child(), 0);
}

TEST_P(Processes, SleepersAreWokenAcrossProcesses) {
  constexpr uint64_t kMessages = 200;
  start([](Endpoint& link, SharedMemory&) {
    for (uint64_t n = 1; n <= kMessages; n++) {
      receive(link);
      link.release();
      if (n % 20 == 0) std::this_thread::sleep_for(milliseconds(2));
    }
    return true;
  });
  auto start = Clock::now();
  for (uint64_t n = 1; n <= kMessages; n++) {
    while (!link().try_send(envelope_of(n), arena(), 5000)) sleep_on(link(), seconds(10));
    while (link().completed() + 2 < n) sleep_on(link(), seconds(10));
  }
  complete(link(), kMessages);
  EXPECT_EQ(wait_for_child(), 0);
  EXPECT_LT(Clock::now() - start, seconds(8));
}

// At an address that the peer tells, in memory that is its own; what is not there is no crash.
TEST_P(Processes, ThePeersMemoryIsReadWhereThatWorks) {
  constexpr uint64_t kBytes = (3 << 20) + 5;
  start([](Endpoint& link, SharedMemory&) {
    auto own = std::make_unique<std::byte[]>(kBytes);
    fill(own.get(), kBytes, 9);
    auto* hole = static_cast<std::byte*>(
        ::mmap(nullptr, 3 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(hole, 1, 3 << 12);
    ::munmap(hole + 4096, 4096);
    auto at = [](const void* memory) { return reinterpret_cast<uintptr_t>(memory); };
    send(link, {{at(own.get()), at(hole), 0}}, nullptr, 0);
    flush(link);
    receive(link);  // the other has read it
    ::raise(SIGKILL);
    return true;
  });
  HostLink* host = host_link(link());
  EXPECT_EQ(host && host->reads_peer(), GetParam() == "shm");
  View view = receive(link());
  auto [own, hole, unused] = view.envelope.words;
  link().release();
  std::vector<std::byte> place(kBytes);
  if (!host) return;
  EXPECT_TRUE(host->read_peer(own, place.data(), kBytes));
  EXPECT_TRUE(filled(place.data(), kBytes, 9));
  EXPECT_TRUE(host->read_peer(own, place.data(), 0));
  EXPECT_TRUE(host->read_peer(hole, place.data(), 4096));
  EXPECT_EQ(place[4095], std::byte{1});
  EXPECT_FALSE(host->read_peer(hole, place.data(), 3 << 12)) << "its middle is not there";
  EXPECT_FALSE(host->read_peer(8, place.data(), 8));
  send(link(), {}, nullptr, 0);
  int status = 0;
  ::waitid(P_PID, static_cast<id_t>(child_), nullptr, WEXITED | WNOWAIT);  // it has ended
  for (int turn = 0; turn < 2; turn++) {                                   // as a zombie first
    try {
      host->read_peer(own, place.data(), kBytes);
      ADD_FAILURE() << "read from a process that has ended";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kPeerLost);
      EXPECT_EQ(error.rank(), 1);
    }
    if (turn == 0) ::waitpid(std::exchange(child_, 0), &status, 0);
  }
}

TEST(PeersMemory, IsNotReadWhereThatIsRefused) {
  World before(*find_transport("shm"), 2, kArenaBytes);
  ASSERT_TRUE(host_link(before[0][1])->reads_peer());
  uint64_t word = 77, place = 0;
  auto at = reinterpret_cast<uintptr_t>(&word);
  EXPECT_TRUE(host_link(before[0][1])->read_peer(at, &place, sizeof place));
  EXPECT_EQ(place, 77u);
  std::thread([&] {
    forbid_reading();
    EXPECT_FALSE(host_link(before[0][1])->read_peer(at, &place, sizeof place)) << "not any more";
    World after(*find_transport("shm"), 2, kArenaBytes);
    EXPECT_FALSE(host_link(after[0][1])->reads_peer());
    EXPECT_FALSE(host_link(after[0][1])->read_peer(at, &place, sizeof place));
    send(after[0][1], envelope_of(1), "hello", 5);
    EXPECT_EQ(receive(after[1][0]).bytes, 5u);
    after[1][0].release();
  }).join();
}

TEST(PeersMemory, IsNotThatOfAnotherProcess) {
  uint64_t nonce = 12345, place = 0;
  auto at = reinterpret_cast<uintptr_t>(&nonce);
  PeerMemory right(::getpid(), at, nonce), wrong(::getpid(), at, nonce + 1);
  EXPECT_TRUE(right.can_be_read());
  EXPECT_FALSE(wrong.can_be_read());
  EXPECT_EQ(wrong.read(at, &place, sizeof place), PeerMemory::Result::kGone);
  // With a word the caller sees whose it is.
  uint64_t word = 0;
  EXPECT_EQ(wrong.read(at, &place, sizeof place, at, &word), PeerMemory::Result::kDone);
  EXPECT_EQ(word, nonce);
}

TEST(PeersMemory, AWordIsReadAfterTheRest) {
  uint64_t nonce = 12345, place = 0, word = 0;
  std::vector<uint64_t> content(3000, 7);
  std::vector<uint64_t> copy(content.size());
  auto at = reinterpret_cast<uintptr_t>(&nonce);
  PeerMemory memory(::getpid(), at, nonce);
  auto from = reinterpret_cast<uintptr_t>(content.data());
  EXPECT_EQ(memory.read(from, copy.data(), 8 * copy.size(), at, &word), PeerMemory::Result::kDone);
  EXPECT_EQ(word, nonce);
  EXPECT_EQ(copy, content);
  word = 0;
  EXPECT_EQ(memory.read(from, &place, 0, at, &word), PeerMemory::Result::kDone);
  EXPECT_EQ(word, nonce);
  EXPECT_EQ(memory.read(from, copy.data(), 8, 8, &word), PeerMemory::Result::kNotThere);
}

TEST_P(Processes, AKilledPeerIsNoticedOrAtLeastDoesNotHang) {
  start([](Endpoint& link, SharedMemory& arena) {
    send(link, envelope_of(1), arena.data(), 1000);
    for (;;) sleep_on(link, seconds(10));
    return true;
  });
  View view = receive(link());
  kill_child();
  // What the dead process had packed can still be read: the pages live as long as this mapping.
  EXPECT_TRUE(filled(view.data, 0, 0));
  for (uint64_t i = 0; i < view.bytes; i++) ASSERT_EQ(view.data[i], std::byte{0});
  link().release();
  bool lost = false;
  auto start = Clock::now();
  try {
    for (int turn = 0; turn < 5; turn++) {
      EXPECT_FALSE(link().try_recv(nullptr, 1000, &view));
      sleep_on(link(), milliseconds(20));
    }
  } catch (const Error& error) {
    lost = true;
    EXPECT_EQ(error.code(), Code::kPeerLost);
    EXPECT_EQ(error.rank(), 1);
  }
  EXPECT_LT(Clock::now() - start, seconds(3));
  EXPECT_EQ(lost, GetParam() == "tcp");
}

TEST_P(Processes, AKilledPeerEndsASendThatIsUnderWay) {
  start([](Endpoint& link, SharedMemory&) {
    for (;;) sleep_on(link, seconds(10));
    return true;
  });
  uint64_t sent = 0;
  while (link().try_send(envelope_of(1), arena(), 1 << 20)) sent++;
  kill_child();
  bool lost = false;
  auto start = Clock::now();
  try {
    for (int turn = 0; turn < 5 && link().completed() < sent; turn++)
      sleep_on(link(), milliseconds(20));
  } catch (const Error& error) {
    lost = true;
    EXPECT_EQ(error.code(), Code::kPeerLost);
    EXPECT_EQ(error.rank(), 1);
  }
  EXPECT_LT(Clock::now() - start, seconds(3));
  EXPECT_EQ(lost, GetParam() == "tcp");
}

}  // namespace
}  // namespace ringcoll
