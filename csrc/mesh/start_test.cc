// Starts that fail: who is blamed, and who hears of it.
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mesh/ranks_testing.h"

namespace ringcoll {
namespace {

using testing::config_of;

/// Another exchange, after whose first round something is done.
class AfterFirstRound final : public Exchange {
 public:
  AfterFirstRound(std::unique_ptr<Exchange> inner, std::function<void()> then)
      : inner_(std::move(inner)), then_(std::move(then)) {
    inner_->while_waiting([this] { look(); });
  }
  Rank rank() const override { return inner_->rank(); }
  Rank size() const override { return inner_->size(); }
  std::vector<std::string> all_gather(const std::string& mine, Deadline deadline) override {
    auto blobs = inner_->all_gather(mine, deadline);
    if (then_) std::exchange(then_, {})();
    return blobs;
  }
  void finish() override { inner_->finish(); }
  void has_died(Rank rank) override { inner_->has_died(rank); }

 private:
  std::unique_ptr<Exchange> inner_;
  std::function<void()> then_;
};

std::vector<Config> configs(Rank size) {
  return std::vector<Config>(static_cast<size_t>(size), config_of("tcp"));
}

// All know where it is, and it is not there: that is how a rank is found that was killed. Its
// neighbours find it at once, and have nothing else to wait for.
TEST(Start, TheDeadAreBlamedHoweverLateOthersAre) {
  constexpr Rank kRanks = 5, kDead = 1;
  for (Rank late = 0; late < kRanks; late++) {
    if (late == kDead) continue;
    auto errors = testing::run_ranks(configs(kRanks), {}, [&](std::unique_ptr<Exchange> inner) {
      Rank rank = inner->rank();
      auto then = [rank, late] {
        if (rank == kDead) throw Error(Code::kInternal, "as if it were killed");
        if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(700));
      };
      return std::make_unique<AfterFirstRound>(std::move(inner), then);
    });
    for (Rank rank = 0; rank < kRanks; rank++) {
      if (rank == kDead) continue;
      EXPECT_TRUE(errors[rank].starts_with("PeerLost connecting rank ") ||
                  errors[rank].starts_with("PeerLost waiting "))
          << rank << ", late " << late << ": " << errors[rank];
      bool names_it = errors[rank].find(fmt::format("-> {} at", kDead)) != std::string::npos ||
                      errors[rank].find(fmt::format("for rank {} to", kDead)) != std::string::npos;
      EXPECT_TRUE(names_it) << rank << ", late " << late << ": " << errors[rank];
    }
  }
}

void expect_all_hear_of_rank_1(const std::vector<std::string>& errors, const std::string& cause) {
  for (size_t rank = 0; rank < errors.size(); rank++) {
    EXPECT_NE(errors[rank].find(cause), std::string::npos) << rank << ": " << errors[rank];
    EXPECT_TRUE(errors[rank].starts_with("InvalidArgument ")) << rank << ": " << errors[rank];
    bool names_it = errors[rank].find("rank 1 cannot start: ") != std::string::npos;
    EXPECT_TRUE(names_it) << rank << ": " << errors[rank];
  }
}

TEST(Start, ARankThatCannotStartTellsTheOthersWhy) {
  auto all = configs(3);
  all[1].costs = "/nonesuch/costs.json";
  auto start = Clock::now();
  expect_all_hear_of_rank_1(testing::run_ranks(all), "/nonesuch/costs.json");
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
}

// It has no other way to tell than the round that all make.
TEST(Start, ARankThatCannotStartTellsTheOthersOverAFunctionToo) {
  constexpr Rank kRanks = 3;
  std::vector<char> room(size_t{1} << 20);
  std::barrier together(kRanks);
  auto all = configs(kRanks);
  all[1].costs = "/nonesuch/costs.json";
  auto errors = testing::run_exchanges(all, [&](const Config& config, Exchange& outer) {
    Rank rank = outer.rank();
    auto gather = [&, rank](const void* mine, size_t bytes, void* result) {
      std::memcpy(room.data() + bytes * static_cast<size_t>(rank), mine, bytes);
      together.arrive_and_wait();
      std::memcpy(result, room.data(), bytes * kRanks);
      together.arrive_and_wait();
      return true;
    };
    auto exchange = make_function_exchange(gather, rank, kRanks);
    Mesh(config, *exchange);
  });
  expect_all_hear_of_rank_1(errors, "/nonesuch/costs.json");
}

}  // namespace
}  // namespace ringcoll
