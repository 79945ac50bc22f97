// rc_call.done: the callback of a call that was started.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/abi_testing.h"

namespace ringcoll::testing {
namespace {

using std::chrono::milliseconds;

/// A sum of one number, and what its callback was told.
struct Operation {
  float value = 1;
  rc_request* request = nullptr;
  std::function<void(Operation&)> then;

  int calls = 0;
  rc_status status = RC_OK;
  std::string text;
  int blamed = -1;
  float value_then = 0;
  std::thread::id thread;

  rc_status start(rc_comm* comm, double timeout_s = 0) {
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    call.timeout_s = timeout_s;
    call.done = &Operation::done;
    call.done_state = this;
    return ringcoll_start(comm, &call, &request);
  }
  rc_status wait(int* done = nullptr, double limit_s = -1) const {
    int ended = 0;
    return ringcoll_wait(request, limit_s, done ? done : &ended);
  }

  static void done(void* state, rc_request* request, rc_status status) {
    auto& self = *static_cast<Operation*>(state);
    EXPECT_EQ(request, self.request);
    self.calls++;
    self.status = status;
    self.text = error_text();
    self.blamed = ringcoll_error_rank();
    self.value_then = self.value;
    self.thread = std::this_thread::get_id();
    if (self.then) self.then(self);
  }
};

/// As long as no rank leaves, none can be missed.
void barrier(rc_comm* comm) {
  rc_call call{};
  call.struct_size = sizeof call;
  call.collective = RC_BARRIER;
  EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
}

TEST(Callback, ComesOnceForEachCallInOrderWithItsResult) {
  world(3, [](rc_comm* comm, int) {
    constexpr int kCalls = 50;
    std::vector<int> order;
    std::vector<Operation> operations(kCalls);
    for (int i = 0; i < kCalls; i++) {
      operations[i].then = [&order, i](Operation&) { order.push_back(i); };
      ASSERT_EQ(operations[i].start(comm), RC_OK) << error_text();
    }
    for (int i = kCalls - 1; i >= 0; i--) {
      EXPECT_EQ(operations[i].wait(), RC_OK) << error_text();
      EXPECT_EQ(operations[i].calls, 1) << i;
      EXPECT_EQ(operations[i].status, RC_OK);
      EXPECT_EQ(operations[i].value_then, 3);
      ringcoll_request_free(operations[i].request);
    }
    for (int i = 0; i < kCalls; i++) EXPECT_EQ(order.at(i), i);
    EXPECT_EQ(order.size(), static_cast<size_t>(kCalls));
  });
}

// Another thread is in it.
TEST(Callback, HasReturnedWhenAWaitDoes) {
  world(1, [](rc_comm* comm, int) {
    for (bool wait : {true, false}) {
      std::latch inside(1);
      std::atomic<bool> returned{false};
      Operation operation;
      operation.then = [&](Operation&) {
        inside.count_down();
        std::this_thread::sleep_for(milliseconds(200));
        returned = true;
      };
      ASSERT_EQ(operation.start(comm), RC_OK) << error_text();
      inside.wait();
      int done = 1;
      EXPECT_EQ(operation.wait(&done, 0.05), RC_OK);
      EXPECT_EQ(done, 0);
      if (wait) {
        EXPECT_EQ(operation.wait(), RC_OK);
        EXPECT_TRUE(returned);
      }
      ringcoll_request_free(operation.request);
      EXPECT_TRUE(returned);
    }
  });
}

// Nobody waits for it, so it is for the library's thread, which has slept since the call before.
TEST(Callback, ComesOfACallThatWasStartedWhileAnotherThreadRanOne) {
  std::latch started(1);
  world(2, [&](rc_comm* comm, int rank) {
    Operation first;
    ASSERT_EQ(first.start(comm), RC_OK) << error_text();
    EXPECT_EQ(first.wait(), RC_OK) << error_text();
    ringcoll_request_free(first.request);

    if (rank == 1) started.wait();
    auto running = std::async(std::launch::async, [comm] {
      float value = 1;
      rc_buffer buffer{&value, &value, 1};
      rc_call call = sum_of(&buffer);
      EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
    });
    std::this_thread::sleep_for(milliseconds(100));  // rank 0 is in it, and that thread sleeps
    std::promise<void> told;
    Operation next;
    next.then = [&told](Operation&) { told.set_value(); };
    ASSERT_EQ(next.start(comm), RC_OK) << error_text();
    if (rank == 0) started.count_down();
    running.get();
    EXPECT_EQ(told.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
    Operation last;  // wakes that thread in any case
    ASSERT_EQ(last.start(comm), RC_OK) << error_text();
    EXPECT_EQ(last.wait(), RC_OK) << error_text();
    ringcoll_request_free(next.request);
    ringcoll_request_free(last.request);
  });
}

// Who has slept until the call before has ended is told so first.
TEST(Callback, MayWaitForWhoHeardOfTheCallBefore) {
  world(2, [](rc_comm* comm, int) {
    for (int turn = 0; turn < 20; turn++) {
      std::promise<void> heard;
      Operation before, next;
      next.then = [&heard](Operation&) {
        EXPECT_EQ(heard.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
      };
      ASSERT_EQ(before.start(comm), RC_OK) << error_text();
      ASSERT_EQ(next.start(comm), RC_OK) << error_text();
      EXPECT_EQ(before.wait(), RC_OK) << error_text();
      heard.set_value();
      EXPECT_EQ(next.wait(), RC_OK) << error_text();
      ringcoll_request_free(before.request);
      ringcoll_request_free(next.request);
    }
  });
}

// The request lies in memory that goes with it.
TEST(Callback, MayAskAndFreeItsRequest) {
  world(2, [](rc_comm* comm, int) {
    for (int i = 0; i < 100; i++) {
      std::promise<void> freed;
      auto* operation = new Operation;
      operation->then = [&freed](Operation& self) {
        int done = 0;
        EXPECT_EQ(self.wait(&done), RC_OK) << error_text();
        EXPECT_EQ(done, 1);
        ringcoll_request_free(self.request);
        auto* mine = &freed;
        delete &self;
        mine->set_value();
      };
      ASSERT_EQ(operation->start(comm), RC_OK) << error_text();
      freed.get_future().wait();
    }
    barrier(comm);
  });
}

TEST(Callback, MayStartTheNextCall) {
  world(2, [](rc_comm* comm, int) {
    constexpr size_t kCalls = 200;
    std::vector<Operation> operations(kCalls);
    std::promise<void> last;
    for (size_t i = 0; i < kCalls; i++)
      operations[i].then = [&, i](Operation&) {
        if (i + 1 == kCalls) return last.set_value();
        EXPECT_EQ(operations[i + 1].start(comm), RC_OK) << error_text();
      };
    ASSERT_EQ(operations[0].start(comm), RC_OK) << error_text();
    last.get_future().wait();
    for (Operation& operation : operations) {
      EXPECT_EQ(operation.wait(), RC_OK) << error_text();
      EXPECT_EQ(operation.calls, 1);
      EXPECT_EQ(operation.value, 2);
      ringcoll_request_free(operation.request);
    }
    barrier(comm);
  });
}

TEST(Callback, CannotWaitForItsOwnCommunicator) {
  world(1, [](rc_comm* comm, int) {
    Operation first, second;
    first.then = [&](Operation&) {
      float value = 1;
      rc_buffer buffer{&value, &value, 1};
      rc_call call = sum_of(&buffer);
      EXPECT_EQ(ringcoll_run(comm, &call), RC_INVALID_ARGUMENT);
      EXPECT_NE(error_text().find("ringcoll_start"), std::string::npos) << error_text();
      const int32_t self = 0;
      rc_comm* sub = nullptr;
      EXPECT_EQ(ringcoll_comm_split(comm, &self, 1, "sub", &sub), RC_INVALID_ARGUMENT);
      ASSERT_EQ(second.start(comm), RC_OK) << error_text();
      int done = 1;
      EXPECT_EQ(second.wait(&done, 0), RC_OK);
      EXPECT_EQ(done, 0);
      EXPECT_EQ(second.wait(), RC_INVALID_ARGUMENT);
      EXPECT_NE(error_text().find("a callback of its own"), std::string::npos) << error_text();
      ringcoll_request_free(second.request);  // does nothing
    };
    ASSERT_EQ(first.start(comm), RC_OK) << error_text();
    EXPECT_EQ(first.wait(), RC_OK);
    EXPECT_EQ(second.wait(), RC_OK);
    EXPECT_EQ(second.calls, 1);
    ringcoll_request_free(first.request);
    ringcoll_request_free(second.request);
    barrier(comm);
  });
}

TEST(Callback, MayCallOnAnotherCommunicator) {
  world(1, [](rc_comm* comm, int) {
    const int32_t self = 0;
    rc_comm* sub = nullptr;
    ASSERT_EQ(ringcoll_comm_split(comm, &self, 1, "sub", &sub), RC_OK) << error_text();
    Operation operation;
    operation.then = [&](Operation&) { barrier(sub); };
    ASSERT_EQ(operation.start(comm), RC_OK) << error_text();
    EXPECT_EQ(operation.wait(), RC_OK);
    ringcoll_request_free(operation.request);
    ringcoll_comm_destroy(sub);
  });
}

TEST(Callback, HearsWhatEndedACall) {
  world(2, [](rc_comm* comm, int rank) {
    Operation operation;
    if (rank == 1) std::this_thread::sleep_for(milliseconds(1500));
    ASSERT_EQ(operation.start(comm, 0.2), RC_OK) << "a poisoned communicator takes it, too";
    EXPECT_EQ(operation.wait(), RC_TIMEOUT);
    EXPECT_EQ(operation.calls, 1);
    EXPECT_EQ(operation.status, RC_TIMEOUT);
    EXPECT_EQ(operation.text, error_text());
    EXPECT_EQ(operation.blamed, 1);
    ringcoll_request_free(operation.request);
  });
}

TEST(Callback, ComesForCallsThatAreAbortedAtClose) {
  std::string store = "local://callbacks-at-close";
  std::latch over(2);
  auto other = std::async(std::launch::async, [&] {
    rc_comm* comm = make(store, 1, 2);
    over.arrive_and_wait();
    ringcoll_comm_destroy(comm);
  });
  rc_comm* comm = make(store, 0, 2);
  std::vector<int> order;
  std::vector<Operation> operations(4);
  for (int i = 0; i < 4; i++) {
    operations[i].then = [&, i](Operation&) {
      order.push_back(i);
      Operation next;
      EXPECT_EQ(next.start(comm), RC_ABORTED) << "it is being closed";
      EXPECT_EQ(next.request, nullptr);
    };
    ASSERT_EQ(operations[i].start(comm), RC_OK) << error_text();
  }
  std::this_thread::sleep_for(milliseconds(100));  // the first one runs
  ringcoll_comm_destroy(comm);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
  for (Operation& operation : operations) {
    EXPECT_EQ(operation.calls, 1);
    EXPECT_EQ(operation.status, RC_ABORTED);
    EXPECT_NE(operation.text.find("closed"), std::string::npos) << operation.text;
    ringcoll_request_free(operation.request);
  }
  over.arrive_and_wait();
  other.get();
}

TEST(Callback, MayDestroyItsCommunicator) {
  std::string store = "local://callback-destroys";
  auto other = std::async(std::launch::async, [&] {
    rc_comm* comm = make(store, 1, 2);
    Operation operation;
    EXPECT_EQ(operation.start(comm), RC_OK) << error_text();
    EXPECT_EQ(operation.wait(), RC_OK) << error_text();
    ringcoll_request_free(operation.request);
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    EXPECT_EQ(ringcoll_run(comm, &call), RC_PEER_LOST) << "the other rank has left";
    ringcoll_comm_destroy(comm);
  });
  rc_comm* comm = make(store, 0, 2);
  Operation operation;
  operation.then = [&](Operation&) { ringcoll_comm_destroy(comm); };
  ASSERT_EQ(operation.start(comm), RC_OK) << error_text();
  EXPECT_EQ(operation.wait(), RC_OK) << error_text();
  ringcoll_request_free(operation.request);
  other.get();
}

TEST(Callback, IsOfStartedCallsAlone) {
  world(1, [](rc_comm* comm, int) {
    Operation operation;
    rc_buffer buffer{&operation.value, &operation.value, 1};
    rc_call call = sum_of(&buffer);
    call.done = &Operation::done;
    call.done_state = &operation;
    EXPECT_EQ(ringcoll_run(comm, &call), RC_INVALID_ARGUMENT);
    EXPECT_NE(error_text().find("ringcoll_start"), std::string::npos) << error_text();
    call.op = RC_BIT_AND;
    EXPECT_EQ(ringcoll_start(comm, &call, &operation.request), RC_INVALID_ARGUMENT);
    EXPECT_EQ(operation.request, nullptr);
    EXPECT_EQ(ringcoll_start(comm, &call, nullptr), RC_INVALID_ARGUMENT);
    barrier(comm);
    EXPECT_EQ(operation.calls, 0);
  });
}

}  // namespace
}  // namespace ringcoll::testing
