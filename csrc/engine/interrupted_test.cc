// rc_call.interrupted and rc_message.interrupted: blocking calls that their caller ends.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/abi_testing.h"

namespace ringcoll::testing {
namespace {

/// A caller that ends its call when it is asked for the n-th time; never if n is 0.
struct Caller {
  explicit Caller(int ends_at) : ends_at(ends_at) {}

  template <typename Asked>
  void watch(Asked& asked) {
    asked.interrupted = [](void* state) { return static_cast<Caller*>(state)->answer(); };
    asked.interrupted_state = this;
  }
  int answer() {
    thread = std::this_thread::get_id();
    if (act) act();
    return ++asked == ends_at ? 1 : 0;
  }

  const int ends_at;
  std::function<void()> act;
  std::atomic<int> asked = 0;
  std::thread::id thread;
};

void wait_for(const auto& there) {
  while (!there()) std::this_thread::yield();
}

rc_message message_of(float* data, int peer, int tag) {
  rc_message message{};
  message.struct_size = sizeof message;
  message.data = data;
  message.bytes = sizeof *data;
  message.peer = peer;
  message.tag = tag;
  return message;
}

class Interrupted : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(All, Interrupted, transports_of_one_process());

// The links may be there already, or be made by the call itself.
TEST_P(Interrupted, EndsACollectiveOnAllRanks) {
  for (bool connected : {false, true}) {
    std::atomic<bool> ended = false;
    world(2, [&](rc_comm* comm, int rank) {
      float value = 1;
      rc_buffer buffer{&value, &value, 1};
      rc_call call = sum_of(&buffer);
      if (connected) {
        EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
      }
      if (rank == 1) {
        wait_for([&] { return ended.load(); });
      } else {
        Caller caller(3);
        caller.watch(call);
        EXPECT_EQ(ringcoll_run(comm, &call), RC_ABORTED) << error_text();
        EXPECT_EQ(caller.asked, 3) << "and not again";
        EXPECT_EQ(caller.thread, std::this_thread::get_id());
      }
      ended = true;
      call.interrupted = nullptr;
      rc_status status = ringcoll_run(comm, &call);
      // What rank 0 had sent of its call may be all that this one needs, and come before the news.
      if (rank == 1 && status == RC_OK) status = ringcoll_run(comm, &call);
      EXPECT_EQ(status, RC_ABORTED) << error_text();
      EXPECT_EQ(ringcoll_error_rank(), 0);
      EXPECT_NE(error_text().find("interrupted in its allreduce"), std::string::npos)
          << error_text();
    });
  }
}

TEST_P(Interrupted, ACallerThatOnlyLooksChangesNothing) {
  std::atomic<bool> looked = false;
  world(2, [&](rc_comm* comm, int rank) {
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    Caller caller(0);
    caller.act = [&] { looked = caller.asked > 0; };
    if (rank == 0) caller.watch(call);
    if (rank == 1) wait_for([&] { return looked.load(); });
    EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
    EXPECT_EQ(value, 2);
  });
}

// In the queue behind a call that was started, which this thread executes too.
TEST_P(Interrupted, EndsACallBehindOthers) {
  for (bool called_back : {false, true}) {
    std::atomic<bool> ended = false;
    world(2, [&](rc_comm* comm, int rank) {
      if (rank == 1) return wait_for([&] { return ended.load(); });
      Started before;
      auto done = [](void*, rc_request*, rc_status) {};
      ASSERT_EQ(before.begin(comm, RC_ALLREDUCE, 0, 0, called_back ? +done : nullptr), RC_OK);
      float value = 1;
      rc_buffer buffer{&value, &value, 1};
      rc_call call = sum_of(&buffer);
      Caller caller(2);
      caller.watch(call);
      EXPECT_EQ(ringcoll_run(comm, &call), RC_ABORTED) << error_text();
      EXPECT_EQ(caller.asked, 2);
      EXPECT_EQ(caller.thread, std::this_thread::get_id());
      int over = 0;
      EXPECT_EQ(ringcoll_wait(before.request, -1, &over), RC_ABORTED);
      ringcoll_request_free(before.request);
      ended = true;
    });
  }
}

TEST_P(Interrupted, AMessageThatNobodyHasMetEndsAlone) {
  std::atomic<bool> ended = false;
  world(2, [&](rc_comm* comm, int rank) {
    std::vector<float> large(1 << 20, 1);  // announced, and not sent before it is asked for
    float value = 0;
    if (rank == 0) {
      Caller receiver(2), sender(2);
      rc_message receive = message_of(&value, 1, 1), send = message_of(large.data(), 1, 2);
      send.bytes = static_cast<int64_t>(large.size() * sizeof large[0]);
      receiver.watch(receive);
      sender.watch(send);
      EXPECT_EQ(ringcoll_recv(comm, &receive, nullptr), RC_ABORTED) << error_text();
      EXPECT_NE(error_text().find("the communicator goes on"), std::string::npos) << error_text();
      EXPECT_EQ(ringcoll_send(comm, &send), RC_ABORTED) << error_text();
      EXPECT_EQ(receiver.asked, 2);
      EXPECT_EQ(sender.asked, 2);
      EXPECT_EQ(sender.thread, std::this_thread::get_id());
    } else {
      wait_for([&] { return ended.load(); });
    }
    ended = true;
    rc_message message = message_of(&value, 1 - rank, 1);
    if (rank == 1) {
      value = 7;
      EXPECT_EQ(ringcoll_send(comm, &message), RC_OK) << error_text();
    } else {
      EXPECT_EQ(ringcoll_recv(comm, &message, nullptr), RC_OK) << error_text();
      EXPECT_EQ(value, 7);
    }
    rc_call barrier{};
    barrier.struct_size = sizeof barrier;
    barrier.collective = RC_BARRIER;
    EXPECT_EQ(ringcoll_run(comm, &barrier), RC_OK) << error_text();
  });
}

// One thread moves all messages, the other sleeps: each can be interrupted, and the other goes on.
TEST_P(Interrupted, EndsTheReceiveOfOneThreadOfTwo) {
  std::atomic<int> interrupted = 0, waiting = 0;
  world(2, [&](rc_comm* comm, int rank) {
    if (rank == 1) {
      wait_for([&] { return interrupted == 2; });
      float value = 5;
      for (int tag : {1, 2}) {
        rc_message send = message_of(&value, 0, tag);
        EXPECT_EQ(ringcoll_send(comm, &send), RC_OK) << error_text();
      }
      return;
    }
    std::vector<std::thread> threads;
    for (int tag : {1, 2})
      threads.emplace_back([&, tag] {
        float value = 0;
        rc_message receive = message_of(&value, 1, tag);
        Caller caller(2);
        // Both wait when the first is interrupted.
        caller.act = [&, first = true]() mutable {
          if (std::exchange(first, false)) waiting++;
          wait_for([&] { return waiting == 2; });
        };
        caller.watch(receive);
        EXPECT_EQ(ringcoll_recv(comm, &receive, nullptr), RC_ABORTED) << error_text();
        interrupted++;
        receive.interrupted = nullptr;
        EXPECT_EQ(ringcoll_recv(comm, &receive, nullptr), RC_OK) << error_text();
        EXPECT_EQ(value, 5);
      });
    for (auto& thread : threads) thread.join();
  });
}

TEST(InterruptedCaller, MayUseTheCommunicatorAsACallbackDoes) {
  world(1, [](rc_comm* other, int) {
    world(2, [&](rc_comm* comm, int rank) {
      float value = 1;
      rc_buffer buffer{&value, &value, 1};
      rc_call call = sum_of(&buffer);
      if (rank == 0) {
        Caller caller(0);
        caller.act = [&] {
          float inner = 1;
          rc_buffer inner_buffer{&inner, &inner, 1};
          rc_call inner_call = sum_of(&inner_buffer);
          EXPECT_EQ(ringcoll_run(comm, &inner_call), RC_INVALID_ARGUMENT) << "it would wait for us";
          EXPECT_EQ(ringcoll_run(other, &inner_call), RC_OK) << error_text();
          ringcoll_comm_abort(comm, "enough");
        };
        caller.watch(call);
        EXPECT_EQ(ringcoll_run(comm, &call), RC_ABORTED);
        EXPECT_EQ(caller.asked, 1);
      } else {
        // Ends when rank 0 is asked, since it is never joined by it.
        rc_message receive = message_of(&value, 0, 1);
        EXPECT_EQ(ringcoll_recv(comm, &receive, nullptr), RC_ABORTED);
      }
      EXPECT_NE(error_text().find("enough"), std::string::npos) << error_text();
    });
  });
}

TEST(InterruptedCaller, IsRefusedWhereNothingBlocks) {
  world(1, [](rc_comm* comm, int) {
    Caller caller(1);
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    rc_message message = message_of(&value, 0, 1);
    caller.watch(call);
    caller.watch(message);
    rc_request* request = nullptr;
    EXPECT_EQ(ringcoll_start(comm, &call, &request), RC_INVALID_ARGUMENT);
    EXPECT_NE(error_text().find("ringcoll_run"), std::string::npos) << error_text();
    for (auto start : {ringcoll_isend, ringcoll_irecv}) {
      EXPECT_EQ(start(comm, &message, &request), RC_INVALID_ARGUMENT);
      EXPECT_NE(error_text().find("ringcoll_recv"), std::string::npos) << error_text();
      EXPECT_EQ(request, nullptr);
    }
    EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
    EXPECT_EQ(caller.asked, 0) << "it has not waited";
  });
}

// Who does not come leaves the others in it until their deadline, or until they are aborted.
TEST(InterruptedShrink, EndsByAnAbortOnTheSameRank) {
  std::atomic<bool> ended = false;
  world(2, [&](rc_comm* comm, int rank) {
    if (rank == 1) return wait_for([&] { return ended.load(); });
    std::thread aborts([&] {
      while (!ended) {  // it may come before the shrink
        ringcoll_comm_abort(comm, "enough");
        std::this_thread::yield();
      }
    });
    rc_comm* rest = nullptr;
    EXPECT_EQ(ringcoll_comm_shrink(comm, "rest", &rest), RC_ABORTED) << error_text();
    EXPECT_EQ(rest, nullptr);
    ended = true;
    aborts.join();
  });
}

}  // namespace
}  // namespace ringcoll::testing
