// Waits: of ranks that have to share a CPU, and with one deadline for several.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "mesh/group/group.h"
#include "mesh/ranks_testing.h"

namespace ringcoll {
namespace {

/// Two ranks on one CPU.
class WaitOnASharedCpu : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }
  void TearDown() override { ASSERT_EQ(::sched_setaffinity(0, sizeof before_, &before_), 0); }
  static void run(const std::function<void(Mesh&)>& body, const char* transport) {
    auto errors = testing::run_ranks({2, testing::config_of(transport)}, body);
    EXPECT_EQ(errors, std::vector<std::string>(2));
  }
  template <typename Ready>
  static void wait(Mesh& mesh, Ready&& ready) {
    Rank peer = 1 - mesh.rank();
    mesh.whole().channels().wait(peer, ready, [] { return std::string("testing"); });
  }
  /// Polls of the median wait of ranks that wait for one another in turn.
  static int median_polls(Mesh& mesh, std::atomic<int>& turn) {
    constexpr int kTurns = 200;
    std::vector<int> polls;
    // Who came early would sleep, and who sleeps is not told here that it is its turn.
    Deadline deadline(std::chrono::seconds(20));
    for (turn++; turn < 0 && !deadline.passed();) ::sched_yield();
    for (int mine = mesh.rank(); mine < kTurns; mine += 2) {
      int count = 0;
      wait(mesh, [&] { return count++, turn == mine; });
      polls.push_back(count);
      turn = mine + 1;
    }
    std::ranges::sort(polls);
    return polls[polls.size() / 2];
  }

 private:
  cpu_set_t before_{};
};

// Many polls in a row keep the peer, which is waited for, from running.
TEST_F(WaitOnASharedCpu, GivesWayAfterEachPoll) {
  for (const char* transport : {"tcp", "shm"}) {
    std::atomic<int> turn{-2};
    run([&](Mesh& mesh) { EXPECT_LE(median_polls(mesh, turn), 8) << transport; }, transport);
  }
}

// Who sleeps is woken up late by a CPU that is busy. A rank that others kept from running for
// longer than it would have polled may block: such waits say nothing.
TEST_F(WaitOnASharedCpu, PollsLongerBeforeItBlocks) {
  constexpr int kWaits = 10;
  run(
      [&](Mesh& mesh) {
        const auto spin = std::chrono::microseconds(mesh.config().spin_us);
        auto blocked_waits = [&] { return mesh.whole().channels().blocked_waits(); };
        int counted = 0;
        for (Deadline enough(std::chrono::seconds(20)); counted < kWaits && !enough.passed();) {
          uint64_t blocked = blocked_waits();
          auto begun = Clock::now();
          wait(mesh, [&] { return Clock::now() - begun > 3 * spin; });
          if (Clock::now() - begun > 5 * spin) continue;
          counted++;
          EXPECT_EQ(blocked_waits(), blocked);
        }
        EXPECT_EQ(counted, kWaits) << "never ran for so long at a time";
      },
      "tcp");
}

class Sleeping : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, Sleeping, ::testing::Values("shm", "tcp", "loopback"),
                         [](const auto& info) { return std::string(info.param); });

// Each wait of three ranks in a ring sleeps, while a message that it does not want yet may be
// there. A notification that is lost costs 50 ms. A busy machine makes a few waits as long.
TEST_P(Sleeping, NobodySleepsThroughAMessage) {
  constexpr Rank kRanks = 3;
  constexpr int kMessages = 1000;
  Config config = testing::config_of(GetParam());
  config.spin_us = 0;
  std::atomic<int> late = 0;
  auto errors = testing::run_ranks({kRanks, config}, [&](Mesh& mesh) {
    Channels& channels = mesh.whole().channels();
    const Rank next = (mesh.rank() + 1) % kRanks, last = (mesh.rank() + kRanks - 1) % kRanks;
    channels.connect(std::vector{next, last});
    View view;
    for (int n = 0; n < kMessages; n++)
      for (auto [to, from] : {std::pair(next, last), std::pair(last, next)}) {
        auto began = Clock::now();
        channels.wait(
            to, [&, to = to] { return channels[to].try_send({}, nullptr, 0) > 0; },
            [] { return std::string("test"); });
        channels.wait(
            from, [&, from = from] { return channels[from].try_recv(nullptr, 0, &view); },
            [] { return std::string("test"); });
        channels[from].release();
        late += Clock::now() - began > std::chrono::milliseconds(45);
      }
    channels.flush([] { return std::string("test"); });
  });
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
  EXPECT_LE(late, kRanks * kMessages / 50);
}

// It is at work, and comes soon.
TEST(Wait, PollsAsLongAsThePeerCopies) {
  constexpr int kWaits = 21;
  auto errors = testing::run_ranks({2, testing::config_of("loopback")}, [](Mesh& mesh) {
    const Rank peer = 1 - mesh.rank();
    Channels& channels = mesh.whole().channels();
    channels.connect({&peer, 1});
    auto waits_blocked = [&](uint64_t bytes) {
      uint64_t before = channels.blocked_waits();
      for (int i = 0; i < kWaits; i++) {
        Deadline over(3 * std::chrono::microseconds(mesh.config().spin_us));
        channels.wait(
            peer, [&] { return over.passed(); }, [] { return std::string("test"); }, bytes);
      }
      return channels.blocked_waits() - before;
    };
    EXPECT_GE(waits_blocked(1 << 10), kWaits / 2u);
    EXPECT_LE(waits_blocked(64 << 20), kWaits / 2u);
  });
  EXPECT_EQ(errors[0], "");
}

void wait_for(Mesh& mesh, Duration time) {
  Deadline over(time);
  mesh.whole().channels().wait(
      1 - mesh.rank(), [&] { return over.passed(); }, [] { return std::string("test"); });
}

/// Rank 0 does it, while rank 1 is there and waits for nobody.
std::string error_of(const std::function<void(Mesh&)>& body) {
  std::atomic<bool> over{false};
  auto errors = testing::run_ranks({2, testing::config_of("loopback")}, [&](Mesh& mesh) {
    const Rank peer = 1 - mesh.rank();
    mesh.whole().channels().connect({&peer, 1});
    if (mesh.rank() == 1) return over.wait(false);
    try {
      body(mesh);
    } catch (const Error&) {
      over = true, over.notify_all();
      throw;
    }
    over = true, over.notify_all();
  });
  return errors[0];
}

TEST(Deadline, WaitsOfACallShareIt) {
  Duration took{};
  std::string error = error_of([&](Mesh& mesh) {
    auto start = Clock::now();
    mesh.whole().channels().set_deadline(Deadline(std::chrono::seconds(2)));
    wait_for(mesh, std::chrono::seconds(1));
    try {
      wait_for(mesh, std::chrono::seconds(60));
    } catch (const Error&) {
      took = Clock::now() - start;
      throw;
    }
  });
  EXPECT_TRUE(error.starts_with("Timeout test: rank 1")) << error;
  EXPECT_LT(to_seconds(took), 2.9) << "2 s of its own would end the second wait after 3";
}

// However long a wait may poll.
TEST(Deadline, EndsPollingToo) {
  Config config = testing::config_of("loopback");
  config.spin_us = 20'000'000;
  auto start = Clock::now();
  auto errors = testing::run_ranks({2, config}, [](Mesh& mesh) {
    if (mesh.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(3));
    mesh.whole().channels().set_deadline(Deadline(std::chrono::milliseconds(100)));
    const Rank peer = 1;
    mesh.whole().channels().connect({&peer, 1});
    wait_for(mesh, std::chrono::seconds(60));
  });
  EXPECT_TRUE(errors[0].starts_with("Timeout test: rank 1")) << errors[0];
  EXPECT_LT(to_seconds(Clock::now() - start), 15);
}

TEST(Deadline, IsOfOneCallAlone) {
  EXPECT_EQ(error_of([](Mesh& mesh) {
              mesh.whole().channels().set_deadline(Deadline(std::chrono::milliseconds(100)));
              wait_for(mesh, std::chrono::milliseconds(50));
              mesh.whole().channels().set_deadline({});
              wait_for(mesh, std::chrono::milliseconds(200));
            }),
            "");
}

}  // namespace
}  // namespace ringcoll
