#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <bit>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bootstrap/exchange.h"

namespace ringcoll {
namespace {

/// Both ends of each pair; who asks first makes them.
class Pairs {
 public:
  Fd take(Rank rank, Rank peer) {
    std::lock_guard lock(mutex_);
    auto there = ends_.find({rank, peer});
    if (there != ends_.end()) return std::move(ends_.extract(there).mapped());
    std::array<int, 2> fds{};
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0, Code::kInternal,
          "socketpair");
    ends_.emplace(std::pair(peer, rank), Fd(fds[1]));
    return Fd(fds[0]);
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<Rank, Rank>, Fd> ends_;
};

class CountingDialer final : public Dialer {
 public:
  CountingDialer(Pairs& pairs, Rank rank) : pairs_(pairs), rank_(rank) {}
  Fd dial(Rank peer, uint32_t channel, Deadline) override {
    EXPECT_EQ(channel, kMeetingChannel);
    dialled++;
    return pairs_.take(rank_, peer);
  }
  int dialled = 0;

 private:
  Pairs& pairs_;
  const Rank rank_;
};

struct Result {
  int dialled = 0;
  std::optional<Error> error;
};

using Body = std::function<void(Exchange&)>;

/// Each rank in a thread of its own.
std::vector<Result> run(Rank size, const Body& body) {
  Pairs pairs;
  std::vector<Result> results(size);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; rank++)
    threads.emplace_back([&, rank] {
      CountingDialer dialer(pairs, rank);
      auto exchange = make_tree_exchange(rank, size, dialer);
      try {
        body(*exchange);
      } catch (const Error& error) {
        results[rank].error = error;
      }
      results[rank].dialled = dialer.dialled;
    });
  for (std::thread& thread : threads) thread.join();
  return results;
}

Deadline soon() { return Deadline(seconds(30)); }

class TreeExchanges : public testing::TestWithParam<Rank> {};
INSTANTIATE_TEST_SUITE_P(Sizes, TreeExchanges, testing::Values(1, 2, 3, 5, 8, 31, 64, 100));

TEST_P(TreeExchanges, GatherByRankOverAndOver) {
  const Rank size = GetParam();
  auto results = run(size, [size](Exchange& exchange) {
    for (int round = 0; round < 3; round++) {
      // Of different lengths, some longer than a socket takes at once: few, as all get all of them.
      auto said = [&](Rank rank) {
        int bytes = rank < 8 ? (rank % 3) * 300'000 : (rank % 3) * 3'000;
        return std::string(round == 1 ? bytes : rank, static_cast<char>(rank));
      };
      auto blobs = exchange.all_gather(said(exchange.rank()), soon());
      ASSERT_EQ(blobs.size(), static_cast<size_t>(size));
      for (Rank rank = 0; rank < size; rank++) EXPECT_TRUE(blobs[rank] == said(rank)) << rank;
    }
  });
  const int most = std::bit_width(static_cast<unsigned>(size - 1));
  int dialled = 0;
  for (const Result& result : results) {
    EXPECT_FALSE(result.error) << result.error->what();
    EXPECT_LE(result.dialled, most);
    dialled += result.dialled;
  }
  EXPECT_EQ(dialled, 2 * (size - 1));  // both ends of a tree
}

// Long before anybody's deadline has passed with its patience.
TEST(TreeExchange, NamesTheRankThatDoesNotCome) {
  auto results = run(8, [](Exchange& exchange) {
    exchange.all_gather("", soon());
    if (exchange.rank() == 5) return std::this_thread::sleep_for(std::chrono::seconds(4));
    exchange.all_gather("", Deadline(seconds(0.3)));
  });
  ASSERT_TRUE(results[4].error);
  EXPECT_EQ(results[4].error->code(), Code::kTimeout);
  EXPECT_EQ(results[4].error->rank(), 5);
}

TEST(TreeExchange, EndsWithWhatALookThrows) {
  std::atomic<bool> poisoned = false;
  auto results = run(4, [&](Exchange& exchange) {
    exchange.while_waiting([&] {
      if (poisoned) throw Error(Code::kAborted, "poisoned");
    });
    exchange.all_gather("", soon());
    if (exchange.rank() == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      poisoned = true;
      return std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    exchange.all_gather("", soon());
  });
  for (Rank rank : {0, 1, 2}) {
    ASSERT_TRUE(results[rank].error);
    EXPECT_EQ(results[rank].error->code(), Code::kAborted);
  }
}

TEST(TreeExchange, EndsWhenAPeerHasEnded) {
  auto results = run(4, [&](Exchange& exchange) {
    exchange.all_gather("", soon());
    if (exchange.rank() == 0) return;
    exchange.all_gather("", soon());
  });
  for (Rank rank : {1, 2, 3}) {
    ASSERT_TRUE(results[rank].error);
    EXPECT_EQ(results[rank].error->code(), Code::kTransport);
  }
}

}  // namespace
}  // namespace ringcoll
