// Links that are opened at the same time.
#include "mesh/group/opening.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mesh/group/group.h"
#include "mesh/ranks_testing.h"

namespace ringcoll {
namespace {

/// Of seven in a ring, rank 0 and those in the middle have nothing to do with one another yet.
constexpr Rank kRanks = 7, kLate = 3, kPrompt = 4, kCaller = 6;
constexpr GroupNumber kBusyGroup = 1234567;

size_t descriptors() {
  auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

void await(const std::atomic<bool>& flag) {
  for (Deadline soon(seconds(20)); !flag && !soon.passed();)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// A job one of whose ranks lets nobody in for some time: its event loop is kept busy.
class ALateRank : public ::testing::Test {
 protected:
  /// `body` is run by each rank while it does so.
  std::vector<std::string> run(const std::function<void(Mesh&)>& body) {
    return testing::run_ranks({kRanks, testing::config_of("tcp")}, [&](Mesh& mesh) {
      if (mesh.rank() == kLate)
        mesh.connector().listen_for_messages(kBusyGroup, [this] {
          busy_ = true;
          await(may_go_on_);
        });
      if (++ready_ == kRanks) all_ready_ = true;
      await(all_ready_);
      if (mesh.rank() == kCaller)
        mesh.connector().begin({kLate, kMessageChannel, kBusyGroup, Connector::Ends::kEither},
                               Deadline(seconds(60)),
                               [](const Fd&, const std::optional<Unmade>&) {});
      await(busy_);
      try {
        body(mesh);
      } catch (...) {
        leave(mesh);
        throw;
      }
      leave(mesh);
    });
  }
  void let_it_go_on() { may_go_on_ = true; }
  /// By all ranks: nobody leaves before all have done what they are to do.
  void leave(Mesh& mesh) {
    if (++done_ == kRanks) all_done_ = true;
    await(all_done_);
    let_it_go_on();
    if (mesh.rank() == kLate || mesh.rank() == kCaller) mesh.connector().end_messages(kBusyGroup);
  }
  static void connect(Mesh& mesh, const std::vector<Rank>& peers) {
    mesh.whole().channels().connect(peers);
  }

 private:
  std::atomic<int> ready_{0}, done_{0};
  std::atomic<bool> all_ready_{false}, busy_{false}, may_go_on_{false}, all_done_{false};
};

TEST_F(ALateRank, HoldsBackNobody) {
  std::atomic<bool> prompt_has_come{false};
  auto errors = run([&](Mesh& mesh) {
    if (mesh.rank() == 0) {
      EXPECT_FALSE(mesh.lifelines().has(kLate) || mesh.lifelines().has(kPrompt));
      connect(mesh, {kLate, kPrompt});
    }
    if (mesh.rank() == kPrompt) {
      for (Deadline soon(seconds(5)); !mesh.lifelines().has(0) && !soon.passed();)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      prompt_has_come = mesh.lifelines().has(0);
      let_it_go_on();
    }
    if (mesh.rank() == kLate || mesh.rank() == kPrompt) connect(mesh, {0});
  });
  EXPECT_TRUE(prompt_has_come) << "the rank that was asked for next had to wait";
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
}

// Those that were to wait for it are told, and nothing is left open.
TEST_F(ALateRank, IsNamedAtTheDeadline) {
  size_t before = descriptors();
  std::atomic<bool> over{false};
  auto errors = run([&](Mesh& mesh) {
    if (mesh.rank() != 0) return await(over);
    mesh.whole().channels().set_deadline(Deadline(std::chrono::milliseconds(700)));
    try {
      connect(mesh, {kLate - 1, kLate, kPrompt});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
      EXPECT_EQ(error.rank(), kLate) << error.what();
      for (Rank peer : {kLate - 1, kPrompt}) EXPECT_TRUE(mesh.lifelines().has(peer)) << peer;
      over = true;
      throw Error(mesh.whole().fail(error));
    }
  });
  EXPECT_TRUE(errors[0].starts_with("Timeout")) << errors[0];
  EXPECT_EQ(descriptors(), before);
}

TEST_F(ALateRank, IsWaitedForNoLongerWhenTheGroupHasFailed) {
  std::atomic<bool> over{false};
  auto errors = run([&](Mesh& mesh) {
    if (mesh.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      mesh.whole().fail(Error(Code::kMismatch, "calls differ", 1));
    }
    if (mesh.rank() != 0) return await(over);
    auto start = Clock::now();
    try {
      connect(mesh, {kLate - 1, kLate, kPrompt});
    } catch (const Error& error) {
      EXPECT_LT(to_seconds(Clock::now() - start), 20);
      EXPECT_EQ(error.code(), Code::kMismatch) << error.what();
      over = true;
      throw;
    }
  });
  EXPECT_TRUE(errors[0].starts_with("Mismatch calls differ")) << errors[0];
}

// Of all pairs at once, each rank in an order of its own.
TEST(Opening, OfAllPairsAtOnceIsNoDeadlock) {
  auto errors = testing::run_ranks({kRanks, testing::config_of("tcp")}, [](Mesh& mesh) {
    std::vector<Rank> peers;
    for (Rank i = 0; i < kRanks; i++) peers.push_back((mesh.rank() * 3 + i * 2) % kRanks);
    std::erase(peers, mesh.rank());
    mesh.whole().channels().connect(peers);
    for (Rank peer : peers) EXPECT_TRUE(mesh.lifelines().has(peer));
  });
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
}

}  // namespace
}  // namespace ringcoll
