// Ranks that can make no more threads: what they ask for is refused or done without one, and the
// others are told.
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/threads_testing.h"
#include "engine/abi_testing.h"

namespace ringcoll {
namespace {

using namespace testing;

// Less than any deadline: who is told does not wait.
constexpr auto kAtOnce = std::chrono::seconds(5);
constexpr double kDeadline = 60;

rc_message message_of(std::vector<char>& data, int peer) {
  rc_message message{};
  message.struct_size = sizeof message;
  message.data = data.data();
  message.bytes = static_cast<int64_t>(data.size());
  message.peer = peer;
  return message;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

/// Two ranks of one process, in which no threads can be made once `body` runs.
template <typename Body>
void two_ranks_without_threads(Body body) {
  in_a_child_of_another_user([&] {
    auto begun = std::chrono::steady_clock::now();
    std::atomic<int> ready{0};
    world(
        2,
        [&](rc_comm* comm, int rank) {
          std::vector<char> hello(1);  // over a network opening a channel takes a thread, too
          rc_message message = message_of(hello, 1 - rank);
          EXPECT_EQ(
              rank == 0 ? ringcoll_send(comm, &message) : ringcoll_recv(comm, &message, nullptr),
              RC_OK)
              << error_text();
          ready++;
          while (ready < 2) std::this_thread::yield();
          if (rank == 0) forbid_threads(), ready++;
          while (ready < 3) std::this_thread::yield();
          body(comm, rank);
        },
        kDeadline);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kAtOnce);
  });
}

class NoThreadsOver : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(All, NoThreadsOver, transports_of_one_process(),
                         [](const auto& info) { return info.param; });

TEST_P(NoThreadsOver, AMessageThatIsStartedIsRefusedAndItsPeerIsTold) {
  for (size_t bytes : {10, 300'000}) {
    two_ranks_without_threads([&](rc_comm* comm, int rank) {
      std::vector<char> data(bytes);
      rc_message message = message_of(data, 1 - rank);
      rc_request* request = nullptr;
      rc_status status = rank == 0 ? ringcoll_isend(comm, &message, &request)
                                   : ringcoll_recv(comm, &message, nullptr);
      EXPECT_EQ(status, RC_TRANSPORT) << error_text();
      EXPECT_EQ(request, nullptr);
      EXPECT_TRUE(contains(error_text(), "ringcoll-post")) << error_text();
      EXPECT_TRUE(contains(error_text(), "ulimit -u")) << error_text();
    });
  }
}

TEST_P(NoThreadsOver, BlockingMessagesNeedNone) {
  two_ranks_without_threads([](rc_comm* comm, int rank) {
    for (int round = 0; round < 20; round++)
      for (size_t bytes : {0, 10, 5'000, 20'000, 300'000}) {
        std::vector<char> data(bytes, static_cast<char>(rank == 0 ? round : 77));
        rc_message message = message_of(data, 1 - rank);
        for (bool sends : {rank == 0, rank != 0})
          ASSERT_EQ(sends ? ringcoll_send(comm, &message) : ringcoll_recv(comm, &message, nullptr),
                    RC_OK)
              << error_text();
        EXPECT_EQ(data, std::vector<char>(bytes, static_cast<char>(round)));
      }
  });
}

TEST_P(NoThreadsOver, ACallThatIsStartedIsRefusedAndTheOthersAreTold) {
  two_ranks_without_threads([](rc_comm* comm, int rank) {
    Started call;
    rc_buffer buffer{call.data.data(), call.data.data(), 1};
    rc_call blocking = sum_of(&buffer);
    rc_status status = rank == 0 ? call.begin(comm) : ringcoll_run(comm, &blocking);
    EXPECT_EQ(status, RC_TRANSPORT) << error_text();
    EXPECT_EQ(call.request, nullptr);
    EXPECT_TRUE(contains(error_text(), "ringcoll-worker")) << error_text();
    EXPECT_TRUE(contains(error_text(), "ulimit -u")) << error_text();
  });
}

// It would be closed by a thread of its own.
TEST(NoThreads, ACommunicatorThatIsDestroyedInItsCallbackIsAborted) {
  in_a_child_of_another_user([] {
    std::promise<void> destroyed;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; rank++)
      ranks.emplace_back([&, rank] {
        rc_comm* comm = make("local://destroyed", rank, 2, kDeadline);
        Started call;
        if (rank == 1) {
          EXPECT_EQ(call.begin(comm), RC_OK) << error_text();
          int done = 0;
          EXPECT_EQ(ringcoll_wait(call.request, -1, &done), RC_OK) << error_text();
          rc_buffer buffer{call.data.data(), call.data.data(), 1};
          rc_call next = sum_of(&buffer);
          EXPECT_NE(ringcoll_run(comm, &next), RC_OK);
          EXPECT_TRUE(contains(error_text(), "ringcoll-close")) << error_text();
          return;
        }
        struct State {
          rc_comm* comm;
          std::promise<void>& destroyed;
        } state{comm, destroyed};
        auto destroy = [](void* own, rc_request*, rc_status) {
          forbid_threads();
          ringcoll_comm_destroy(static_cast<State*>(own)->comm);
          static_cast<State*>(own)->destroyed.set_value();
        };
        EXPECT_EQ(call.begin(comm, RC_ALLREDUCE, 0, 0, destroy, &state), RC_OK) << error_text();
        EXPECT_EQ(destroyed.get_future().wait_for(kAtOnce), std::future_status::ready);
      });
    for (auto& rank : ranks) rank.join();
  });
}

}  // namespace
}  // namespace ringcoll
