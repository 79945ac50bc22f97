// Ranks that cannot take part in the first round, and how the others hear why.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error_testing.h"
#include "bootstrap/exchange.h"
#include "store/http_server_testing.h"
#include "store/store_testing.h"

namespace ringcoll {
namespace {

using testing::Directory;
using testing::free_port;

constexpr Rank kRanks = 4;

/// A place for a store of each kind.
class Refusal : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string kind = GetParam();
    if (kind == "local") url_ = "local://refusal";
    if (kind == "file") url_ = directory_.url();
    if (kind == "tcp") url_ = fmt::format("tcp://127.0.0.1:{}", free_port());
    if (kind == "horovod") url_ = fmt::format("horovod://127.0.0.1:{}", server_.port());
  }
  void TearDown() override {
    EXPECT_TRUE(directory_.empty()) << "files are left";
    EXPECT_EQ(server_.value_count(), 0u) << "keys are left";
  }

  std::unique_ptr<Exchange> make(Rank rank) {
    Deadline deadline(seconds(60));
    return make_store_exchange(open_store(url_, "", rank, kRanks, deadline), "w", rank, kRanks);
  }

  struct Heard {
    std::optional<Error> error;
    double seconds = 0;
  };
  /// `refusing` cannot take part, and is there at once; the others come after `late` each.
  std::vector<Heard> run(Rank refusing, const std::vector<double>& late) {
    std::vector<Heard> heard(kRanks);
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < kRanks; rank++)
      threads.emplace_back([&, rank] {
        std::this_thread::sleep_for(seconds(late[rank]));
        auto start = Clock::now();
        auto exchange = make(rank);
        if (rank == refusing) {
          Error cause(Code::kInvalidArgument, "it has a cause", rank);
          EXPECT_TRUE(exchange->refuse(cause, Deadline(seconds(kTellingSeconds))));
          EXPECT_EQ(testing::error_of([&] { exchange->all_gather("x", testing::soon()); }).code(),
                    Code::kInvalidArgument);
          return;
        }
        heard[rank].error =
            testing::error_of([&] { exchange->all_gather("x", Deadline(seconds(60))); });
        heard[rank].seconds = to_seconds(Clock::now() - start);
      });
    for (std::thread& thread : threads) thread.join();
    return heard;
  }
  void expect_heard(Rank refusing, const std::vector<double>& late) {
    auto heard = run(refusing, late);
    for (Rank rank = 0; rank < kRanks; rank++) {
      if (rank == refusing) continue;
      const Error& error = *heard[rank].error;
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << rank << ": " << error.what();
      EXPECT_EQ(error.rank(), refusing) << rank << ": " << error.what();
      EXPECT_TRUE(testing::contains(error, "it has a cause")) << rank << ": " << error.what();
      EXPECT_LT(heard[rank].seconds, 5) << rank;  // and not at the deadline
    }
  }

  Directory directory_;
  HttpServerForTests server_;
  std::string url_;
};
INSTANTIATE_TEST_SUITE_P(Stores, Refusal, ::testing::Values("local", "file", "tcp", "horovod"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Refusal, AllHearAtOnceWhoItWasAndWhy) {
  for (Rank refusing = 0; refusing < kRanks; refusing++) expect_heard(refusing, {0, 0, 0, 0});
}

TEST_P(Refusal, WhoComesLateHearsItToo) {
  expect_heard(0, {0, 0.1, 1, 0.5});
  expect_heard(2, {0.3, 0, 0, 1});
}

// A rank that never comes does not keep the others waiting.
TEST_P(Refusal, NobodyIsWaitedForLong) {
  auto start = Clock::now();
  auto exchange = make(0);
  exchange->refuse(Error(Code::kInvalidArgument, "it has a cause", 0), Deadline(seconds(0.3)));
  exchange.reset();
  EXPECT_LT(to_seconds(Clock::now() - start), 10);
}

TEST(RefusalOverAFunction, OnlyARoundCanTell) {
  auto exchange = make_function_exchange([](const void*, size_t, void*) { return false; }, 0, 2);
  EXPECT_FALSE(exchange->refuse(Error(Code::kInvalidArgument, "it has a cause"), testing::soon()));
}

}  // namespace
}  // namespace ringcoll
