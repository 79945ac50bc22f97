// Who waits for a call that was started executes it, and others up to it. Callbacks run there, and
// so tell which thread that was.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/abi_testing.h"

namespace ringcoll::testing {
namespace {

using std::chrono::milliseconds;

/// A sum of ones.
struct Sum : Started {
  using Started::Started;

  rc_status start(rc_comm* comm) { return begin(comm); }
  /// With a callback. Until it has ended the object stays where it is.
  rc_status start_observed(rc_comm* comm, double timeout_s = 0) {
    auto done = [](void* self, rc_request*, rc_status) {
      static_cast<Sum*>(self)->executor->set_value(std::this_thread::get_id());
    };
    return begin(comm, RC_ALLREDUCE, 0, timeout_s, done, this);
  }
  /// False: not within that time.
  bool wait(double limit_s = -1, rc_status expected = RC_OK) const {
    int done = 0;
    rc_status status = ringcoll_wait(request, limit_s, &done);
    EXPECT_EQ(status, done ? expected : RC_OK) << error_text();
    return done != 0;
  }
  /// Without a wait that would execute.
  bool ends_by_itself() const {
    for (int i = 0; i < 1000; i++) {
      if (wait(0)) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }
  ~Sum() { ringcoll_request_free(request); }

  std::shared_ptr<std::promise<std::thread::id>> executor =
      std::make_shared<std::promise<std::thread::id>>();
};

/// Until it is true; a minute.
void await(const std::function<bool()>& happened) {
  for (int i = 0; i < 6000 && !happened(); i++) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(happened());
}

class Helping : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(, Helping, transports_of_one_process(),
                         [](const auto& info) { return std::string(info.param); });

/// How many of 100 calls are executed by this thread, which waits in that way. The library's thread
/// takes what nobody waits for in time, as on a busy machine.
int executed_here(rc_comm* comm, double limit_s) {
  int here = 0;
  for (int i = 0; i < 100; i++) {
    Sum sum;
    EXPECT_EQ(sum.start_observed(comm), RC_OK) << error_text();
    EXPECT_TRUE(sum.wait(limit_s));
    EXPECT_EQ(sum.data[0], 2);
    here += sum.executor->get_future().get() == std::this_thread::get_id();
  }
  return here;
}

TEST_P(Helping, IsDoneByWhoWaits) {
  world(2, [](rc_comm* comm, int) { EXPECT_GT(executed_here(comm, -1), 50); });
}

TEST_P(Helping, IsDoneByWhoWaitsWithALimit) {
  world(2, [](rc_comm* comm, int) { EXPECT_GT(executed_here(comm, 30), 50); });
}

TEST_P(Helping, IsDoneByNobodyWhoOnlyLooks) {
  world(2, [](rc_comm* comm, int) {
    for (int i = 0; i < 20; i++) {
      Sum sum;
      ASSERT_EQ(sum.start_observed(comm), RC_OK) << error_text();
      EXPECT_TRUE(sum.ends_by_itself());
      EXPECT_NE(sum.executor->get_future().get(), std::this_thread::get_id());
    }
  });
}

// Batches are executed by who waits for the last, or for each.
TEST_P(Helping, BatchesHaveTheirOrder) {
  world(2, [](rc_comm* comm, int) {
    for (int batch = 0; batch < 100; batch++) {
      std::vector<Sum> sums(8);
      for (Sum& sum : sums)
        ASSERT_EQ(batch % 2 ? sum.start(comm) : sum.start_observed(comm), RC_OK) << error_text();
      if (batch % 3 == 0) {
        EXPECT_TRUE(sums.back().wait());
        for (Sum& sum : sums) EXPECT_TRUE(sum.wait(0)) << "all before have ended";
      }
      for (Sum& sum : sums) EXPECT_TRUE(sum.wait(batch % 5 == 0 ? 30 : -1));
      for (Sum& sum : sums) EXPECT_EQ(sum.data[0], 2);
    }
  });
}

// The peer starts the second only when this rank has come back from the first.
TEST_P(Helping, LeavesOtherCallsToTheThreadOfTheLibrary) {
  std::latch heard(1);
  world(2, [&](rc_comm* comm, int rank) {
    Sum first, second(100000), third;
    ASSERT_EQ(first.start(comm), RC_OK);
    if (rank == 0) {
      ASSERT_EQ(second.start(comm), RC_OK);
      ASSERT_EQ(third.start(comm), RC_OK);
      EXPECT_TRUE(first.wait());
      heard.count_down();
    } else {
      EXPECT_TRUE(first.wait());
      await([&] { return heard.try_wait(); });
      ASSERT_EQ(second.start(comm), RC_OK);
      ASSERT_EQ(third.start(comm), RC_OK);
    }
    EXPECT_TRUE(third.ends_by_itself());
    EXPECT_TRUE(second.wait());
    EXPECT_EQ(second.data.back(), 2);
  });
}

// A callback of a later call may wait for what the thread does next.
TEST_P(Helping, EndsWithItsOwnCall) {
  world(2, [](rc_comm* comm, int) {
    for (int turn = 0; turn < 50; turn++) {
      std::promise<void> waited;
      Sum first, second;
      ASSERT_EQ(first.start(comm), RC_OK);
      auto done = [](void* state, rc_request*, rc_status) {
        auto returned = static_cast<std::promise<void>*>(state)->get_future();
        EXPECT_EQ(returned.wait_for(std::chrono::seconds(10)), std::future_status::ready);
      };
      ASSERT_EQ(second.begin(comm, RC_ALLREDUCE, 0, 0, done, &waited), RC_OK);
      EXPECT_TRUE(first.wait(turn % 2 ? 30 : -1));
      waited.set_value();
      EXPECT_TRUE(second.wait());
    }
  });
}

// The library's thread executes when this one comes.
TEST_P(Helping, WhoComesLaterTakesOver) {
  for (double limit_s : {-1.0, 30.0}) {
    std::latch waits(1);
    world(2, [&](rc_comm* comm, int rank) {
      executed_here(comm, -1);
      Sum sum;
      if (rank == 1) {
        await([&] { return waits.try_wait(); });
        std::this_thread::sleep_for(milliseconds(50));
        ASSERT_EQ(sum.start(comm), RC_OK);
        EXPECT_TRUE(sum.wait());
        return;
      }
      ASSERT_EQ(sum.start_observed(comm), RC_OK);
      std::this_thread::sleep_for(milliseconds(50));
      waits.count_down();
      EXPECT_TRUE(sum.wait(limit_s));
      EXPECT_EQ(sum.executor->get_future().get(), std::this_thread::get_id());
    });
  }
}

// One of them executes, until its own has ended; the other's goes on.
TEST_P(Helping, OfTwoWhoWaitEachHasItsCall) {
  world(2, [](rc_comm* comm, int rank) {
    for (int i = 0; i < 100; i++) {
      Sum first, second(i % 10 == 0 ? 50000 : 1);
      ASSERT_EQ(first.start(comm), RC_OK);
      if (rank == 1 && i % 5 == 0) std::this_thread::sleep_for(milliseconds(1));
      ASSERT_EQ(second.start(comm), RC_OK);
      std::thread other([&] { EXPECT_TRUE((i % 2 ? first : second).wait()); });
      EXPECT_TRUE((i % 2 ? second : first).wait());
      other.join();
      EXPECT_EQ(first.data[0], 2);
      EXPECT_EQ(second.data.back(), 2);
    }
  });
}

// Of a call that waits for its peer, or for the connection to it.
TEST_P(Helping, ALimitIsKept) {
  for (bool connected : {false, true}) {
    std::latch looked(1);
    world(2, [&](rc_comm* comm, int rank) {
      if (connected) executed_here(comm, -1);
      Sum sum;
      if (rank == 1) await([&] { return looked.try_wait(); });
      ASSERT_EQ(sum.start_observed(comm), RC_OK);
      if (rank == 0) {
        std::vector<double> passed;
        for (int i = 0; i < 9; i++) {
          auto begin = std::chrono::steady_clock::now();
          EXPECT_FALSE(sum.wait(0.005));
          passed.push_back(
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        }
        std::ranges::nth_element(passed, passed.begin() + 4);
        EXPECT_GE(passed[4], 0.005);
        EXPECT_LT(passed[4], 0.03);
        looked.count_down();
      }
      EXPECT_TRUE(sum.wait());
    });
  }
}

// Though each wait is shorter.
TEST_P(Helping, WhoWaitsAgainAndAgainHearsOfTheDeadline) {
  for (double own : {0.0, 0.5}) {
    std::latch over(1);
    world(
        2,
        [&](rc_comm* comm, int rank) {
          executed_here(comm, -1);
          if (rank == 1) return await([&] { return over.try_wait(); });
          Sum sum;
          ASSERT_EQ(sum.start_observed(comm, own), RC_OK);
          int done = 0;
          rc_status status = RC_OK;
          for (int i = 0; i < 1000 && !done; i++) status = ringcoll_wait(sum.request, 0.01, &done);
          EXPECT_EQ(status, RC_TIMEOUT);
          EXPECT_EQ(ringcoll_error_rank(), 1);
          over.count_down();
        },
        own > 0 ? 20 : 0.5);
  }
}

// Who waits is in the middle of it, or about to begin, or away from calls in flight.
TEST_P(Helping, ClosingEndsIt) {
  std::mt19937 random(1);
  for (int i = 0; i < 20; i++) {
    std::atomic<int> closed = 0;
    auto pause = std::chrono::microseconds(random() % 300);
    std::string store = "local://closing-" + std::string(GetParam()) + std::to_string(i);
    std::thread peer([&] {
      rc_comm* comm = make(store, 1, 2);
      Sum before;
      EXPECT_EQ(before.start(comm), RC_OK);
      before.wait();
      await([&] { return closed == 1; });
      ringcoll_comm_destroy(comm);
    });
    rc_comm* comm = make(store, 0, 2);
    {
      Sum before;
      ASSERT_EQ(before.start(comm), RC_OK);
      before.wait();
      std::vector<Sum> sums(3);
      for (Sum& sum : sums) ASSERT_EQ(sum.start(comm), RC_OK);
      std::thread waiter([&] {
        for (Sum& sum : sums) EXPECT_TRUE(sum.wait(-1, RC_ABORTED));
      });
      std::this_thread::sleep_for(pause);
      ringcoll_comm_destroy(comm);
      closed = 1;
      waiter.join();
    }
    peer.join();
  }
}

// More calls than are executed at a time.
TEST_P(Helping, ClosingWakesWhoSleepsForACallThatHasNotBegun) {
  struct Sleeper {
    std::vector<Sum> sums = std::vector<Sum>(300);
    std::promise<void> woken;
  };
  auto sleeper = std::make_shared<Sleeper>();  // its thread's, too, should nobody wake that
  std::future<void> woken = sleeper->woken.get_future();
  world(2, [&](rc_comm* comm, int rank) {
    if (rank == 1) {
      EXPECT_EQ(woken.wait_for(std::chrono::seconds(15)), std::future_status::ready);
      return;
    }
    for (Sum& sum : sleeper->sums) ASSERT_EQ(sum.start(comm), RC_OK) << error_text();
    std::thread([sleeper] {
      EXPECT_TRUE(sleeper->sums.back().wait(-1, RC_ABORTED));
      sleeper->woken.set_value();
    }).detach();
    std::this_thread::sleep_for(milliseconds(100));  // it sleeps
  });
}

// A rank may wait, or look, or do something else; calls may be of any size, on any communicator.
TEST_P(Helping, InAnyOrder) {
  world(3, [](rc_comm* comm, int rank) {
    std::vector<int> all = {0, 1, 2};
    rc_comm* twin = nullptr;
    ASSERT_EQ(ringcoll_comm_split(comm, all.data(), 3, "twin", &twin), RC_OK) << error_text();
    std::mt19937 alike(1), own(static_cast<unsigned>(rank) + 2);
    for (int batch = 0; batch < 40; batch++) {
      std::vector<Sum> sums;
      sums.reserve(8);
      for (unsigned i = 0, count = 1 + alike() % 8; i < count; i++) {
        sums.emplace_back(alike() % 4 == 0 ? 20000 : 10);
        ASSERT_EQ(sums.back().start(alike() % 2 ? comm : twin), RC_OK) << error_text();
        if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 200));
      }
      std::vector<std::thread> threads;
      for (Sum& sum : sums) {
        switch (own() % 4) {
          case 0:
            EXPECT_TRUE(sum.ends_by_itself());
            break;
          case 1:
            threads.emplace_back([&sum] { EXPECT_TRUE(sum.wait()); });
            break;
          case 2:
            EXPECT_TRUE(sum.wait(30));
            break;
          default:
            EXPECT_TRUE(sum.wait());
        }
      }
      for (auto& thread : threads) thread.join();
      for (Sum& sum : sums) EXPECT_EQ(sum.data.back(), 3);
    }
    ringcoll_comm_destroy(twin);
  });
}

}  // namespace
}  // namespace ringcoll::testing
