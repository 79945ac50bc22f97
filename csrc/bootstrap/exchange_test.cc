#include "bootstrap/exchange.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/error_testing.h"
#include "bootstrap/records.h"
#include "net/socket.h"
#include "store/http_server_testing.h"

namespace ringcoll {
namespace {

Deadline soon() { return Deadline(seconds(30)); }

using testing::error_of;

struct Result {
  std::vector<std::string> blobs;
  std::optional<Error> error;
};

bool contains(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

/// A place for a store of each kind.
class EveryExchange : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    char path[] = "/tmp/ringcoll_test_XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    directory_ = path;
    std::string kind = GetParam();
    if (kind == "local") url_ = "local://test";
    if (kind == "file") url_ = "file://" + directory_.string();
    if (kind == "horovod") url_ = fmt::format("horovod://127.0.0.1:{}", server_.port());
    if (kind == "tcp") {
      Fd listener = listen_on(Address::parse("127.0.0.1:0"));
      url_ = "tcp://" + local_address(listener.get()).text();
    }
  }
  void TearDown() override {
    EXPECT_TRUE(std::filesystem::is_empty(directory_)) << "files are left";
    EXPECT_EQ(server_.value_count(), 0u) << "keys are left";
    std::filesystem::remove_all(directory_);
  }

  std::unique_ptr<Exchange> make(Rank rank, Rank size) {
    return make_store_exchange(open_store(url_, "sesame", rank, size, soon()), "a job/", rank,
                               size);
  }
  // Each of `ranks` in a thread of its own, in a job that it takes to be of its size.
  std::vector<Result> run(const std::vector<std::pair<Rank, Rank>>& ranks,
                          const std::function<std::vector<std::string>(Exchange&)>& body) {
    std::vector<Result> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); i++)
      threads.emplace_back([&, i] {
        try {
          auto exchange = make(ranks[i].first, ranks[i].second);
          results[i].blobs = body(*exchange);
        } catch (const Error& error) {
          results[i].error = error;
        }
      });
    for (auto& thread : threads) thread.join();
    return results;
  }

  std::filesystem::path directory_;
  HttpServerForTests server_;
  std::string url_;
};
INSTANTIATE_TEST_SUITE_P(Stores, EveryExchange,
                         ::testing::Values("local", "file", "tcp", "horovod"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EveryExchange, GathersOverAndOver) {
  for (Rank size : {1, 2, 5}) {
    std::vector<std::pair<Rank, Rank>> ranks;
    for (Rank rank = 0; rank < size; rank++) ranks.emplace_back(rank, size);
    auto results = run(ranks, [&](Exchange& exchange) {
      EXPECT_EQ(exchange.size(), size);
      for (int round = 0; round < 3; round++) {
        auto blobs = exchange.all_gather(fmt::format("{}:{}", round, exchange.rank()), soon());
        EXPECT_EQ(blobs.size(), static_cast<size_t>(size));
        for (Rank rank = 0; rank < size; rank++)
          EXPECT_EQ(blobs[rank], fmt::format("{}:{}", round, rank));
      }
      // Of different lengths, with any byte.
      return exchange.all_gather(std::string(exchange.rank() * 1000, '\0'), soon());
    });
    for (const Result& result : results) {
      ASSERT_FALSE(result.error) << result.error->what();
      for (Rank rank = 0; rank < size; rank++)
        EXPECT_EQ(result.blobs[rank], std::string(rank * 1000, '\0'));
    }
  }
}

TEST_P(EveryExchange, ASecondOneInTheSamePlace) {
  for (int i = 0; i < 3; i++) {
    auto results = run({{0, 2}, {1, 2}}, [&](Exchange& exchange) {
      return exchange.all_gather(fmt::format("{}", i), soon());
    });
    for (const Result& result : results) {
      ASSERT_FALSE(result.error) << result.error->what();
      EXPECT_EQ(result.blobs, std::vector<std::string>(2, fmt::format("{}", i)));
    }
  }
}

TEST_P(EveryExchange, NamesTheRanksThatDidNotCome) {
  auto start = Clock::now();
  auto results = run({{0, 5}, {1, 5}, {3, 5}}, [](Exchange& exchange) {
    return exchange.all_gather("x", Deadline(seconds(0.4)));
  });
  EXPECT_LT(to_seconds(Clock::now() - start), 15);
  for (const Result& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), Code::kTimeout) << result.error->what();
    EXPECT_EQ(result.error->rank(), 2);
    EXPECT_TRUE(contains(*result.error, "ranks 2, 4 of 5")) << result.error->what();
    EXPECT_TRUE(contains(*result.error, url_)) << result.error->what();
  }
}

TEST_P(EveryExchange, NamesRankZeroIfItDoesNotCome) {
  if (std::string(GetParam()) == "tcp") return;  // open_store() says so: TcpStore.AMissingRankZero…
  auto results = run({{1, 3}, {2, 3}}, [](Exchange& exchange) {
    return exchange.all_gather("x", Deadline(seconds(0.3)));
  });
  for (const Result& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), Code::kTimeout);
    EXPECT_EQ(result.error->rank(), 0);
  }
}

TEST_P(EveryExchange, TwoThatClaimOneRankAreNamedToAll) {
  auto start = Clock::now();
  auto results = run({{0, 3}, {1, 3}, {1, 3}}, [](Exchange& exchange) {
    return exchange.all_gather("x", Deadline(seconds(20)));
  });
  EXPECT_LT(to_seconds(Clock::now() - start), 15) << "not by the deadline";
  int named = 0;
  for (const Result& result : results) {
    ASSERT_TRUE(result.error);
    std::string expected = "two processes claim rank 1: pid ";
    named += result.error->code() == Code::kInvalidArgument && contains(*result.error, expected);
  }
  EXPECT_EQ(named, 3);
}

TEST_P(EveryExchange, RanksThatDisagreeAboutTheSizeAreNamed) {
  for (Rank believed : {2, 4}) {
    auto results = run({{0, 3}, {1, believed}},
                       [](Exchange& exchange) { return exchange.all_gather("x", soon()); });
    for (const Result& result : results) {
      ASSERT_TRUE(result.error);
      EXPECT_EQ(result.error->code(), Code::kInvalidArgument);
      EXPECT_EQ(result.error->rank(), 1);
      EXPECT_TRUE(contains(*result.error, fmt::format("has {} ranks", believed)))
          << result.error->what();
    }
  }
}

TEST_P(EveryExchange, AFailureOfRankZeroIsNotWaitedOut) {
  auto start = Clock::now();
  auto results = run({{0, 3}, {1, 3}, {2, 3}}, [](Exchange& exchange) {
    auto blobs = exchange.all_gather("x", soon());
    // Rank 0 does not come to the second round, but leaves.
    if (exchange.rank() == 0) return blobs;
    return exchange.all_gather("y", Deadline(seconds(60)));
  });
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
  EXPECT_FALSE(results[0].error);
  for (Rank rank : {1, 2}) {
    ASSERT_TRUE(results[rank].error);
    EXPECT_EQ(results[rank].error->code(), Code::kTransport) << results[rank].error->what();
    EXPECT_EQ(results[rank].error->rank(), 0);
  }
}

TEST_P(EveryExchange, WhoComesWhenRankZeroHasLeftIsToldAndLeavesNothing) {
  std::thread leaves([&] { make(0, 2)->all_gather("x", soon()); });
  auto exchange = make(1, 2);
  exchange->all_gather("x", soon());
  leaves.join();
  Error error = error_of([&] { exchange->all_gather("y", soon()); });
  EXPECT_EQ(error.code(), Code::kTransport) << error.what();
  EXPECT_EQ(error.rank(), 0);
}

/// Another store, but that `before_set` is called first.
class InterruptedStore : public Store {
 public:
  InterruptedStore(std::unique_ptr<Store> store, std::function<void()> before_set)
      : store_(std::move(store)), before_set_(std::move(before_set)) {}

  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    before_set_();
    store_->set(key, value, deadline);
  }
  std::optional<std::string> try_get(const std::string& key, Deadline deadline) override {
    return store_->try_get(key, deadline);
  }
  void remove(const std::string& key, Deadline deadline) override { store_->remove(key, deadline); }
  const std::string& name() const override { return store_->name(); }

 private:
  std::unique_ptr<Store> store_;
  std::function<void()> before_set_;
};

TEST_P(EveryExchange, NothingIsLeftOfAnErrorThatIsToldWhenRankZeroHasLeft) {
  std::thread leaves([&] {
    auto exchange = make(0, 2);
    EXPECT_THROW(exchange->all_gather("x", Deadline(seconds(0.3))), Error);
  });
  bool told = false;
  auto store = std::make_unique<InterruptedStore>(open_store(url_, "sesame", 1, 2, soon()), [&] {
    if (!std::exchange(told, true)) leaves.join();
  });
  auto exchange = make_store_exchange(std::move(store), "a job/", 1, 2);
  EXPECT_TRUE(exchange->refuse(Error(Code::kInvalidArgument, "a knob"), soon()));
  EXPECT_TRUE(told);
}

TEST_P(EveryExchange, AfterAFailureItStaysFailed) {
  auto results = run({{0, 2}}, [](Exchange& exchange) {
    EXPECT_THROW(exchange.all_gather("x", Deadline(seconds(0.1))), Error);
    auto start = Clock::now();
    EXPECT_THROW(exchange.all_gather("x", soon()), Error);
    EXPECT_LT(to_seconds(Clock::now() - start), 5);
    return std::vector<std::string>();
  });
  EXPECT_FALSE(results[0].error);
}

TEST_P(EveryExchange, WhatIsThrownByALookEndsTheWait) {
  for (Rank first : {0, 1}) {
    std::atomic<bool> ended = false;
    auto start = Clock::now();
    auto results = run({{0, 3}, {1, 3}}, [&](Exchange& exchange) {
      bool is_first = exchange.rank() == first;
      exchange.while_waiting([&, is_first] { check(!is_first && !ended, Code::kAborted, "seen"); });
      try {
        return exchange.all_gather("x", Deadline(seconds(20)));
      } catch (const Error&) {
        ended = ended || is_first;
        throw;
      }
    });
    EXPECT_LT(to_seconds(Clock::now() - start), 15) << "not by the deadline";
    for (const Result& result : results) {
      ASSERT_TRUE(result.error);
      EXPECT_EQ(result.error->code(), Code::kAborted) << result.error->what();
    }
  }
}

/// Of a rank that is stopped for a while when it could read the outcome.
class LateStore : public Store {
 public:
  LateStore(std::unique_ptr<Store> inner, double late_s)
      : inner_(std::move(inner)), late_s_(late_s) {}
  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    inner_->set(key, value, deadline);
  }
  std::optional<std::string> try_get(const std::string& key, Deadline deadline) override {
    return inner_->try_get(key, deadline);
  }
  std::optional<std::string> wait(const std::string& key, Deadline deadline) override {
    if (key.ends_with(".all")) std::this_thread::sleep_for(seconds(std::exchange(late_s_, 0)));
    return inner_->wait(key, deadline);
  }
  void remove(const std::string& key, Deadline deadline) override { inner_->remove(key, deadline); }
  const std::string& name() const override { return inner_->name(); }

 private:
  std::unique_ptr<Store> inner_;
  double late_s_;
};

TEST(StoreExchange, RankZeroLingersForWhoReadsTheLastOutcomeLate) {
  auto gather = [](Rank rank, double late_s) {
    auto store = open_store("local://late", "", rank, 2, soon());
    auto exchange =
        make_store_exchange(std::make_unique<LateStore>(std::move(store), late_s), "p", rank, 2);
    auto blobs = exchange->all_gather("x", soon());
    exchange->finish();
    return blobs;
  };
  std::vector<std::string> read;
  std::thread late([&] { EXPECT_NO_THROW(read = gather(1, 3)); });
  gather(0, 0);
  late.join();
  EXPECT_EQ(read, std::vector<std::string>(2, "x"));
}

/// Of a rank that dies when it could read the outcome.
class DyingStore final : public LateStore {
 public:
  explicit DyingStore(std::unique_ptr<Store> inner) : LateStore(std::move(inner), 0) {}
  std::optional<std::string> wait(const std::string& key, Deadline deadline) override {
    auto found = LateStore::wait(key, deadline);
    dead_ = key.ends_with(".all") && found;
    if (dead_) throw Error(Code::kAborted, "killed");
    return found;
  }
  void remove(const std::string& key, Deadline deadline) override {
    if (!dead_) LateStore::remove(key, deadline);
  }

 private:
  bool dead_ = false;
};

TEST(StoreExchange, RankZeroDoesNotLingerForWhoIsSeenToHaveDied) {
  std::thread dies([] {
    auto store = std::make_unique<DyingStore>(open_store("local://dies", "", 1, 2, soon()));
    auto exchange = make_store_exchange(std::move(store), "p", 1, 2);
    EXPECT_THROW(exchange->all_gather("x", soon()), Error);
  });
  auto exchange = make_store_exchange(open_store("local://dies", "", 0, 2, soon()), "p", 0, 2);
  exchange->all_gather("x", soon());
  dies.join();
  auto began = Clock::now();
  exchange->while_waiting([] { throw Error(Code::kPeerLost, "it has died", 1); });
  EXPECT_THROW(exchange->finish(), Error);
  exchange->has_died(1);
  exchange.reset();
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(1));
  EXPECT_FALSE(open_store("local://dies", "", 0, 2, soon())->try_get("psession", soon()));
}

TEST(StoreExchange, TwoThatClaimRankZeroOverwriteEachOther) {
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  std::vector<Result> results(2);
  std::vector<std::thread> threads;
  for (Result& result : results)
    threads.emplace_back([&] {
      try {
        auto exchange = make_store_exchange(open_store(url, "", 0, 2, soon()), "p", 0, 2);
        exchange->all_gather("x", Deadline(seconds(20)));
      } catch (const Error& error) {
        result.error = error;
      }
    });
  for (auto& thread : threads) thread.join();
  for (const Result& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), Code::kInvalidArgument) << result.error->what();
    EXPECT_TRUE(contains(*result.error, "two processes claim rank 0")) << result.error->what();
  }
}

// A server that overwrites lets a rival take the place of a record that was there first, while rank
// 2 is awaited.
TEST(StoreExchange, ARivalThatOverwritesARecordWhileOthersAreAwaited) {
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  auto store = open_store(url, "", 1, 3, soon());
  std::vector<std::optional<Error>> errors(2);
  std::vector<std::thread> threads;
  auto start = Clock::now();
  for (Rank rank : {0, 1})
    threads.emplace_back([&, rank] {
      try {
        auto exchange = make_store_exchange(open_store(url, "", rank, 3, soon()), "p.", rank, 3);
        exchange->all_gather("x", Deadline(seconds(20)));
      } catch (const Error& error) {
        errors[rank] = error;
      }
    });
  std::string session = Record::decode(store->get("p.session", soon())).claim.token;
  std::string key = fmt::format("p.{}.0.1", session);
  store->get(key, soon());
  std::string rival = Record{{"r1val", "pid 1 on nowhere"}, 3, "y"}.encode();
  store->remove(key, soon());
  store->set(key, rival, soon());
  threads[1].join();
  EXPECT_EQ(store->try_get(key, soon()), rival) << "the rival has not read the outcome yet";
  store->remove(key, soon());  // which it does here
  threads[0].join();
  EXPECT_LT(to_seconds(Clock::now() - start), 15) << "not by the deadline";
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), Code::kInvalidArgument) << error->what();
    EXPECT_EQ(error->rank(), 1);
    EXPECT_TRUE(contains(*error, "two processes claim rank 1: pid 1 on nowhere and pid "))
        << error->what();
  }
  EXPECT_EQ(server.value_count(), 0u) << "keys are left";
}

/// What rank 2 of 3 makes of an outcome that stands in the store before it comes.
Error error_of_rank_two(const Outcome& outcome) {
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  auto store = open_store(url, "", 0, 3, soon());
  store->set("p.session", Record{{"0wn", "pid 1 on nowhere"}, 3, ""}.encode(), soon());
  store->set("p.0wn.0.all", outcome.encode(), soon());
  try {
    auto exchange = make_store_exchange(open_store(url, "", 2, 3, soon()), "p.", 2, 3);
    exchange->all_gather("x", Deadline(seconds(20)));
  } catch (const Error& error) {
    EXPECT_FALSE(store->try_get("p.0wn.0.2", soon())) << "its record is left";
    return error;
  }
  ADD_FAILURE() << "no error";
  return {Code::kInternal, ""};
}

TEST(StoreExchange, AnOutcomeOfFewerRanksThanThisOneIsOfIsRefused) {
  Record some{{"t", "p"}, 2, ""};
  Error error = error_of_rank_two({{some, some}, {}});
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_TRUE(contains(error, "(pid 1 on nowhere) was told that the job has 2 ranks, rank 2 (pid "))
      << error.what();
  Error told = error_of_rank_two({{}, Error(Code::kMismatch, "they disagree", 1)});
  EXPECT_EQ(told.code(), Code::kMismatch);
  EXPECT_EQ(told.rank(), 1);
}

// Who can write to the store could otherwise stand between two ranks.
TEST(StoreExchange, AnOutcomeThatHasAnotherAddressForThisRankIsRefused) {
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  auto store = open_store(url, "", 0, 2, soon());
  Record zero{{"0wn", "pid 1 on nowhere"}, 2, "zero"};
  store->set("p.session", zero.encode(), soon());
  std::optional<Error> error;
  std::thread one([&] {
    try {
      auto exchange = make_store_exchange(open_store(url, "", 1, 2, soon()), "p.", 1, 2);
      exchange->all_gather("10.0.0.1:4711", Deadline(seconds(20)));
    } catch (const Error& e) {
      error = e;
    }
  });
  Record theirs = Record::decode(store->get("p.0wn.0.1", soon()));
  theirs.blob = "10.6.6.6:4711";
  store->set("p.0wn.0.all", Outcome{{zero, theirs}, {}}.encode(), soon());
  one.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Code::kTransport);
  EXPECT_TRUE(contains(*error, url) && contains(*error, "another process writes")) << error->what();
}

void come_after_a_killed_job(bool with_record) {
  // As if rank 0 of an earlier job had been killed: its session stays in a server that knows
  // nothing of processes.
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  Record old{{"0ld", "pid 1 on nowhere"}, 2, ""};
  auto store = open_store(url, "", 1, 2, soon());
  store->set("p.session", old.encode(), soon());
  store->set("p.0ld.0.all", Outcome{{old, old}, {}}.encode(), soon());
  if (with_record) store->set("p.0ld.0.1", old.encode(), soon());
  std::optional<Error> error;
  std::vector<std::string> blobs;
  std::thread one([&] {
    try {
      auto exchange = make_store_exchange(open_store(url, "", 1, 2, soon()), "p.", 1, 2);
      blobs = exchange->all_gather("one", soon());
    } catch (const Error& e) {
      error = e;
    }
  });
  auto exchange = make_store_exchange(open_store(url, "", 0, 2, soon()), "p.", 0, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(exchange->all_gather("zero", soon()), (std::vector<std::string>{"zero", "one"}));
  one.join();
  ASSERT_FALSE(error) << error->what();
  EXPECT_EQ(blobs, (std::vector<std::string>{"zero", "one"}));
}

TEST(StoreExchange, WhatAKilledJobHasLeftMisleadsNobody) {
  come_after_a_killed_job(false);
  come_after_a_killed_job(true);
}

// It has taken the session of an earlier job away, and not begun its own.
TEST(StoreExchange, WhoseRankZeroDiesBetweenTwoSessionsEndsAtTheDeadline) {
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  Record old{{"0ld", "pid 1 on nowhere"}, 2, ""};
  auto store = open_store(url, "", 1, 2, soon());
  store->set("p.session", old.encode(), soon());
  store->set("p.0ld.0.all", Outcome{{old, old}, {}}.encode(), soon());
  std::atomic<bool> ended = false;
  std::thread one([&] {
    auto exchange = make_store_exchange(open_store(url, "", 1, 2, soon()), "p.", 1, 2);
    Error error = error_of([&] { exchange->all_gather("one", Deadline(seconds(0.5))); });
    EXPECT_EQ(error.code(), Code::kTransport);
    EXPECT_TRUE(contains(error, "rank 0 (pid 1 on nowhere) has ended")) << error.what();
    ended = true;
  });
  store->get("p.0ld.0.1", soon());
  store->remove("p.session", soon());
  Deadline deadline(seconds(20));
  while (!ended && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(ended) << "it waits for ever";
  store->remove("p.0ld.0.all", soon());  // then it ends in any case
  one.join();
}

TEST(StoreExchange, ASigkillOfAnyRankLeavesNothing) {
  for (Rank victim : {0, 1}) {
    char path[] = "/tmp/ringcoll_test_XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    std::string url = fmt::format("file://{}", path);
    std::vector<pid_t> pids;
    for (Rank rank = 0; rank < 3; rank++) {
      pid_t pid = fork();
      if (pid == 0) {
        try {
          auto exchange = make_store_exchange(open_store(url, "", rank, 3, soon()), "p", rank, 3);
          exchange->all_gather("x", soon());
          if (rank == victim) kill(getpid(), SIGKILL);
          exchange->all_gather("y", Deadline(seconds(1)));
        } catch (const Error&) {
          _exit(42);
        }
        _exit(0);
      }
      pids.push_back(pid);
    }
    for (Rank rank = 0; rank < 3; rank++) {
      int status = 0;
      waitpid(pids[rank], &status, 0);
      if (rank == victim)
        EXPECT_TRUE(WIFSIGNALED(status));
      else
        EXPECT_EQ(WEXITSTATUS(status), 42);
    }
    EXPECT_TRUE(std::filesystem::is_empty(path)) << "victim " << victim;
    std::filesystem::remove_all(path);
  }
}

TEST(StoreExchange, RefusesARankOutOfRange) {
  EXPECT_THROW(make_store_exchange(nullptr, "", 2, 2), Error);
  EXPECT_THROW(make_store_exchange(nullptr, "", -1, 2), Error);
  EXPECT_EQ(make_store_exchange(nullptr, "", 0, 1)->all_gather("alone", soon()),
            std::vector<std::string>{"alone"});
}

TEST(Records, RefuseWhatIsNone) {
  Outcome outcome{{Record{{"t", "p"}, 2, "blob"}, Record{{"u", "q"}, 2, ""}}, {}};
  std::string good = outcome.encode();
  EXPECT_EQ(Outcome::decode(good).records.at(0).blob, "blob");
  for (size_t cut = 0; cut < good.size(); cut++)
    EXPECT_THROW(Outcome::decode(good.substr(0, cut)), Error) << cut;
  EXPECT_THROW(Outcome::decode(good + "x"), Error);
  EXPECT_THROW(Record::decode(good), Error);
  Outcome failed{{}, Error(Code::kTimeout, "late", 3)};
  Outcome copy = Outcome::decode(failed.encode());
  ASSERT_TRUE(copy.error);
  EXPECT_EQ(copy.error->code(), Code::kTimeout);
  EXPECT_EQ(copy.error->rank(), 3);
  EXPECT_STREQ(copy.error->what(), "late");
}

}  // namespace
}  // namespace ringcoll
