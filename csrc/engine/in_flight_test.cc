// Several calls of a communicator in flight at once.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <latch>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/abi_testing.h"

namespace ringcoll::testing {
namespace {

using std::chrono::milliseconds;

rc_status end(Started& call) {
  int done = 0;
  rc_status status = ringcoll_wait(call.request, -1, &done);
  ringcoll_request_free(call.request);
  return status;
}

uint64_t messages_sent(rc_comm* comm) { return counter_of(comm, "messages_sent"); }

using InFlight = OverTransports;
INSTANTIATE_TEST_SUITE_P(, InFlight, transports_of_one_process(),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(InFlight, CallsOfAllSizesGiveWhatTheyGiveOneByOne) {
  world(3, [](rc_comm* comm, int rank) {
    std::vector<Started> calls;
    constexpr std::array<size_t, 5> kSizes = {1, 100, 0, 20000, 500000};
    for (size_t i = 0; i < 100; i++) {
      bool broadcast = i % 3 == 1;
      calls.emplace_back(kSizes[i % 5], broadcast ? static_cast<float>(rank) : 1.0F);
      ASSERT_EQ(calls.back().begin(comm, broadcast ? RC_BROADCAST : RC_ALLREDUCE,
                                   static_cast<int>(i % 2)),
                RC_OK);
    }
    for (size_t i = 0; i < calls.size(); i++) {
      ASSERT_EQ(end(calls[i]), RC_OK) << error_text();
      auto expected = i % 3 == 1 ? static_cast<float>(i % 2) : 3.0F;
      for (float value : calls[i].data) ASSERT_EQ(value, expected) << "call " << i;
    }
  });
}

// The second and third send though nobody has answered the first.
TEST_P(InFlight, LaterCallsDoNotWaitForEarlierOnes) {
  std::latch shown(1);
  world(2, [&](rc_comm* comm, int rank) {
    Started before;
    ASSERT_EQ(before.begin(comm), RC_OK);
    ASSERT_EQ(end(before), RC_OK) << error_text();
    uint64_t sent = messages_sent(comm);
    std::array<Started, 3> calls;
    for (int i = 0; rank == 1 && i < 1500 && !shown.try_wait(); i++)
      std::this_thread::sleep_for(milliseconds(10));
    for (Started& call : calls) {
      ASSERT_EQ(call.begin(comm), RC_OK);
      // The library's thread has begun it, and sleeps when the next comes.
      if (rank == 0) std::this_thread::sleep_for(milliseconds(50));
    }
    if (rank == 0) {
      for (int i = 0; i < 1000 && messages_sent(comm) < sent + 3; i++)
        std::this_thread::sleep_for(milliseconds(10));
      EXPECT_EQ(messages_sent(comm), sent + 3);
      shown.count_down();
    }
    for (Started& call : calls) {
      EXPECT_EQ(end(call), RC_OK) << error_text();
      EXPECT_EQ(call.data[0], 2);
    }
  });
}

// The next call is in flight, and goes on only when this rank has heard of the one that has ended:
// with polls, and without.
TEST_P(InFlight, WhoWaitsIsWokenWhileOthersGoOn) {
  for (const char* spin_us : {"0", "25", "1000000"}) {
    ::setenv("RINGCOLL_SPIN_US", spin_us, 1);
    std::latch heard(1);
    world(2, [&](rc_comm* comm, int rank) {
      Started first, second;
      ASSERT_EQ(first.begin(comm), RC_OK);
      if (rank == 0) {
        ASSERT_EQ(second.begin(comm), RC_OK);
      }
      EXPECT_EQ(end(first), RC_OK) << error_text();
      if (rank == 0) {
        heard.count_down();
      } else {
        for (int i = 0; i < 1000 && !heard.try_wait(); i++)
          std::this_thread::sleep_for(milliseconds(10));
        EXPECT_TRUE(heard.try_wait()) << "spin " << spin_us;
        ASSERT_EQ(second.begin(comm), RC_OK);
      }
      EXPECT_EQ(end(second), RC_OK) << error_text();
      EXPECT_EQ(second.data[0], 2);
    });
  }
  ::unsetenv("RINGCOLL_SPIN_US");
}

// Batches that gather while the library's thread naps, though nobody waits for any of them.
TEST_P(InFlight, EndThoughNobodyWaits) {
  world(2, [](rc_comm* comm, int) {
    for (int batch = 0; batch < 50; batch++) {
      std::array<Started, 8> calls;
      for (Started& call : calls) ASSERT_EQ(call.begin(comm), RC_OK);
      for (Started& call : calls) {
        int done = 0;
        for (int i = 0; i < 100000 && !done; i++) {
          ASSERT_EQ(ringcoll_wait(call.request, 0, &done), RC_OK) << error_text();
          if (!done) std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        EXPECT_TRUE(done) << "batch " << batch;
        EXPECT_EQ(end(call), RC_OK);
        EXPECT_EQ(call.data[0], 2);
      }
    }
  });
}

// As if they were made one by one.
TEST_P(InFlight, CallsOnTheSameMemoryHaveTheirOrder) {
  world(2, [](rc_comm* comm, int rank) {
    constexpr size_t kCalls = 20;
    std::vector<float> data(1000, 1), copy(1000);
    std::vector<rc_request*> requests;
    auto start = [&](const rc_call& call) {
      requests.emplace_back();
      ASSERT_EQ(ringcoll_start(comm, &call, &requests.back()), RC_OK) << error_text();
    };
    for (size_t i = 0; i < kCalls; i++) {
      rc_buffer doubled{data.data(), data.data(), 1000};
      start(sum_of(&doubled));
      // What is read of it here is written there: by a part of it, and out of place.
      rc_buffer shown{data.data() + 500, copy.data() + 500, 500};
      rc_call broadcast = sum_of(&shown);
      broadcast.collective = RC_BROADCAST;
      broadcast.root = static_cast<int>(i % 2);
      if (rank != broadcast.root) shown.input = nullptr;
      start(broadcast);
    }
    for (rc_request* request : requests) {
      int done = 0;
      EXPECT_EQ(ringcoll_wait(request, -1, &done), RC_OK) << error_text();
      ringcoll_request_free(request);
    }
    for (float value : data) ASSERT_EQ(value, 1 << kCalls);
    for (size_t i = 500; i < 1000; i++) ASSERT_EQ(copy[i], 1 << kCalls);
  });
}

TEST_P(InFlight, AFailureIsThatOfAll) {
  world(2, [](rc_comm* comm, int rank) {
    std::array<Started, 3> calls;
    if (rank == 1) {
      ASSERT_EQ(calls[0].begin(comm), RC_OK);
      EXPECT_EQ(end(calls[0]), RC_OK) << error_text();
      Started other(7);
      ASSERT_EQ(other.begin(comm), RC_OK);
      EXPECT_EQ(end(other), RC_MISMATCH);
      return;
    }
    for (Started& call : calls) ASSERT_EQ(call.begin(comm), RC_OK);
    EXPECT_EQ(end(calls[0]), RC_OK) << error_text();
    for (size_t i : {1, 2}) {
      EXPECT_EQ(end(calls[i]), RC_MISMATCH);
      EXPECT_NE(error_text().find("allreduce #2 of 7 float32"), std::string::npos) << error_text();
    }
  });
}

// It counts from when those before it have ended.
TEST_P(InFlight, EachHasItsOwnDeadline) {
  world(2, [](rc_comm* comm, int rank) {
    Started first;
    ASSERT_EQ(first.begin(comm), RC_OK);
    ASSERT_EQ(end(first), RC_OK) << error_text();
    Started patient, hasty;
    if (rank == 1) std::this_thread::sleep_for(milliseconds(900));
    ASSERT_EQ(patient.begin(comm, RC_ALLREDUCE, 0, 15), RC_OK);
    if (rank == 1) std::this_thread::sleep_for(milliseconds(2500));
    ASSERT_EQ(hasty.begin(comm, RC_ALLREDUCE, 0, 0.5), RC_OK);
    EXPECT_EQ(end(patient), RC_OK) << error_text();
    EXPECT_EQ(end(hasty), RC_TIMEOUT);
    EXPECT_NE(error_text().find("timeout of the call"), std::string::npos) << error_text();
  });
}

TEST_P(InFlight, ClosingEndsAll) {
  world(2, [](rc_comm* comm, int rank) {
    static std::atomic<int> ended;
    ended = 0;
    Started before;
    ASSERT_EQ(before.begin(comm), RC_OK);
    ASSERT_EQ(end(before), RC_OK) << error_text();
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(300));
      return;
    }
    std::vector<float> data(8, 1);
    std::vector<rc_request*> requests(8);
    for (size_t i = 0; i < 8; i++) {
      rc_buffer buffer{&data[i], &data[i], 1};
      rc_call call = sum_of(&buffer);
      call.done = [](void*, rc_request* request, rc_status status) {
        EXPECT_EQ(status, RC_ABORTED) << error_text();
        ended++;
        ringcoll_request_free(request);
      };
      ASSERT_EQ(ringcoll_start(comm, &call, &requests[i]), RC_OK);
    }
    std::this_thread::sleep_for(milliseconds(50));
    ringcoll_comm_abort(comm, "enough");
    for (int i = 0; i < 500 && ended < 8; i++) std::this_thread::sleep_for(milliseconds(10));
    EXPECT_EQ(ended, 8);
  });
}

// Threads and communicators in random order: what one waits for is never behind another.
TEST_P(InFlight, CommunicatorsDoNotWaitForOneAnother) {
  world(3, [](rc_comm* comm, int rank) {
    std::array<int, 3> all = {0, 1, 2};
    std::array<rc_comm*, 3> comms = {comm, nullptr, nullptr};
    for (size_t i : {1, 2})
      ASSERT_EQ(ringcoll_comm_split(comm, all.data(), 3, "twin", &comms[i]), RC_OK) << error_text();
    std::vector<std::thread> threads;
    for (size_t i = 0; i < comms.size(); i++)
      threads.emplace_back([&, i] {
        std::mt19937 random(static_cast<unsigned>(rank) * 3 + static_cast<unsigned>(i));
        std::vector<Started> calls;
        for (size_t n = 0; n < 60; n++) {
          calls.emplace_back(n % 7 == 0 ? 30000 : 10);
          ASSERT_EQ(calls.back().begin(comms[i]), RC_OK) << error_text();
          if (random() % 8 == 0) std::this_thread::sleep_for(milliseconds(random() % 5));
        }
        for (Started& call : calls) {
          EXPECT_EQ(end(call), RC_OK) << error_text();
          EXPECT_EQ(call.data[0], 3);
        }
      });
    for (auto& thread : threads) thread.join();
    for (size_t i : {1, 2}) ringcoll_comm_destroy(comms[i]);
  });
}

}  // namespace
}  // namespace ringcoll::testing
