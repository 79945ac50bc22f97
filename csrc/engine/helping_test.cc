// Who waits for a call that was started executes it, and others up to it.
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

  rc_status start(rc_comm* comm, rc_done_fn done = nullptr, void* state = nullptr) {
    return begin(comm, RC_ALLREDUCE, 0, 0, done, state);
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
};

uint64_t calls_helped(rc_comm* comm) { return counter_of(comm, "calls_helped"); }

/// Until it is true; a minute.
void await(const std::function<bool()>& happened) {
  for (int i = 0; i < 6000 && !happened(); i++) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(happened());
}

class Helping : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(, Helping, transports_of_one_process(),
                         [](const auto& info) { return std::string(info.param); });

// Whoever is first: over many batches both have been.
TEST_P(Helping, IsDoneByWhoWaitsAtOnce) {
  world(2, [](rc_comm* comm, int) {
    for (int batch = 0; batch < 300; batch++) {
      std::vector<Sum> sums(batch % 2 ? 1 : 4);  // over a network only the former are
      for (Sum& sum : sums) ASSERT_EQ(sum.start(comm), RC_OK) << error_text();
      for (Sum& sum : sums) {
        EXPECT_TRUE(sum.wait());
        EXPECT_EQ(sum.data[0], 2);
      }
    }
    EXPECT_GT(calls_helped(comm), 0u);
  });
}

TEST_P(Helping, IsDoneByNobodyWhoOnlyLooks) {
  world(2, [](rc_comm* comm, int) {
    for (int i = 0; i < 20; i++) {
      Sum sum;
      ASSERT_EQ(sum.start(comm), RC_OK) << error_text();
      EXPECT_TRUE(i % 2 ? sum.ends_by_itself() : sum.wait(30));
    }
    EXPECT_EQ(calls_helped(comm), 0u);
  });
}

// The peer starts the second only when this rank has come back from the first.
TEST_P(Helping, LeavesOtherCallsToTheWorker) {
  std::latch heard(1);
  world(2, [&](rc_comm* comm, int rank) {
    for (int i = 0; i < 50; i++) {  // it is the habit
      Sum before;
      ASSERT_EQ(before.start(comm), RC_OK);
      EXPECT_TRUE(before.wait());
    }
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

// The first waits, and executes, until the second comes, which is the worker's.
TEST_P(Helping, EndsWhenACallHasACallback) {
  std::latch told(1);
  world(2, [&](rc_comm* comm, int rank) {
    Sum before;
    ASSERT_EQ(before.start(comm), RC_OK);
    EXPECT_TRUE(before.wait());
    Sum first, second;
    if (rank == 1) {
      await([&] { return told.try_wait(); });
      ASSERT_EQ(first.start(comm), RC_OK);
      ASSERT_EQ(second.start(comm), RC_OK);
      EXPECT_TRUE(first.wait());
      EXPECT_TRUE(second.wait());
      return;
    }
    std::promise<std::thread::id> executor;
    ASSERT_EQ(first.start(comm), RC_OK);
    std::thread waiter([&] { EXPECT_TRUE(first.wait()); });
    std::this_thread::sleep_for(milliseconds(100));
    ASSERT_EQ(second.start(
                  comm,
                  [](void* state, rc_request*, rc_status) {
                    static_cast<std::promise<std::thread::id>*>(state)->set_value(
                        std::this_thread::get_id());
                  },
                  &executor),
              RC_OK);
    told.count_down();
    std::thread::id there = executor.get_future().get();
    EXPECT_NE(there, waiter.get_id());
    EXPECT_NE(there, std::this_thread::get_id());
    waiter.join();
  });
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

// With a limit it looks only.
TEST_P(Helping, ALimitIsKept) {
  std::latch looked(1);
  world(2, [&](rc_comm* comm, int rank) {
    Sum sum;
    if (rank == 1) await([&] { return looked.try_wait(); });
    ASSERT_EQ(sum.start(comm), RC_OK);
    if (rank == 0) {
      EXPECT_FALSE(sum.wait(0.05));
      looked.count_down();
    }
    EXPECT_TRUE(sum.wait());
  });
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
