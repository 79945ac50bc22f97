// Messages with tags by the C ABI, with ranks that are threads.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "engine/abi_testing.h"
#include "shm/peer_memory_testing.h"

namespace ringcoll {
namespace {

using namespace testing;

rc_message message_of(void* data, int64_t bytes, int32_t peer, int32_t tag) {
  rc_message message{};
  message.struct_size = sizeof message;
  message.data = data;
  message.bytes = bytes;
  message.peer = peer;
  message.tag = tag;
  return message;
}
rc_message_info no_info() {
  rc_message_info info{};
  info.struct_size = sizeof info;
  return info;
}

std::vector<uint8_t> content(size_t bytes, int seed) {
  std::vector<uint8_t> data(bytes);
  for (size_t i = 0; i < bytes; i++) data[i] = static_cast<uint8_t>(seed * 31 + i * 7 + i / 251);
  return data;
}

void send(rc_comm* comm, std::vector<uint8_t> data, int32_t to, int32_t tag) {
  rc_message message = message_of(data.data(), static_cast<int64_t>(data.size()), to, tag);
  EXPECT_EQ(ringcoll_send(comm, &message), RC_OK) << error_text();
}
std::vector<uint8_t> receive(rc_comm* comm, int32_t from, int32_t tag, size_t room) {
  std::vector<uint8_t> data(room);
  rc_message message = message_of(data.data(), static_cast<int64_t>(room), from, tag);
  rc_message_info info = no_info();
  EXPECT_EQ(ringcoll_recv(comm, &message, &info), RC_OK) << error_text();
  data.resize(static_cast<size_t>(info.bytes));
  return data;
}
void wait_and_free(rc_request* request, rc_status expected = RC_OK) {
  int done = 0;
  EXPECT_EQ(ringcoll_wait(request, -1, &done), expected) << error_text();
  EXPECT_EQ(done, 1);
  ringcoll_request_free(request);
}

using MessagesOver = OverTransports;
INSTANTIATE_TEST_SUITE_P(All, MessagesOver, transports_of_one_process(),
                         [](const auto& info) { return info.param; });

constexpr size_t kKiB = 1 << 10;
// On both sides of each limit at which a message goes another way (p2p/courier.h).
const std::vector<size_t> kSizes = {0,
                                    1,
                                    1000,
                                    kKiB,
                                    kKiB + 1,
                                    8 * kKiB,
                                    8 * kKiB + 1,
                                    64 * kKiB,
                                    64 * kKiB + 1,
                                    128 * kKiB,
                                    128 * kKiB + 1,
                                    1000 * kKiB + 7,
                                    kKiB * kKiB,
                                    5 * kKiB * kKiB + 3};

void there_and_back(rc_comm* comm, int rank, size_t bytes) {
  auto data = content(bytes, 3);
  if (rank == 0) {
    send(comm, data, 1, 7);
    EXPECT_TRUE(receive(comm, 1, 7, bytes + 10) == data) << bytes;
  } else {
    send(comm, receive(comm, RC_ANY_SOURCE, RC_ANY_TAG, bytes), 0, 7);
  }
}

/// A number of the statistics.
int64_t counted(rc_comm* comm, const std::string& name) {
  char* json = nullptr;
  EXPECT_EQ(ringcoll_comm_stats(comm, &json), RC_OK);
  std::string stats = json;
  ringcoll_free(json);
  size_t at = stats.find('"' + name + "\":");
  EXPECT_NE(at, std::string::npos) << name;
  return std::stoll(stats.substr(at + name.size() + 3));
}

TEST_P(MessagesOver, EverySizeGoesThereAndBack) {
  world(2, [](rc_comm* comm, int rank) {
    for (size_t bytes : kSizes) there_and_back(comm, rank, bytes);
  });
}

// Long ones that are all there before one of them is received.
TEST_P(MessagesOver, ManyUnderWayAtOnceArriveAsTheyWere) {
  world(2, [](rc_comm* comm, int rank) {
    for (size_t bytes : {size_t{20'000}, 64 * kKiB, 200'000 + size_t{1}}) {
      constexpr int kMany = 40;
      std::vector<std::vector<uint8_t>> data(kMany);
      std::vector<rc_request*> requests(kMany);
      for (int i = 0; i < kMany; i++) {
        data[i] = rank == 0 ? content(bytes, i) : std::vector<uint8_t>(bytes);
        rc_message message = message_of(data[i].data(), static_cast<int64_t>(bytes), 1 - rank, 1);
        EXPECT_EQ(rank == 0 ? ringcoll_isend(comm, &message, &requests[i])
                            : ringcoll_irecv(comm, &message, &requests[i]),
                  RC_OK)
            << error_text();
      }
      for (rc_request* request : requests) wait_and_free(request);
      for (int i = 0; rank == 1 && i < kMany; i++)
        EXPECT_TRUE(data[i] == content(bytes, i)) << bytes << ", message " << i;
    }
  });
}

class MessagesOverShm : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(All, MessagesOverShm, ::testing::Values("shm"),
                         [](const auto& info) { return info.param; });

TEST_P(MessagesOverShm, LongOnesAreReadWhereThatIsAllowed) {
  world(2, [](rc_comm* comm, int rank) {
    there_and_back(comm, rank, 64 * kKiB);
    EXPECT_EQ(counted(comm, "receives_read") + counted(comm, "receives_helped"), 0);
    there_and_back(comm, rank, 64 * kKiB + 1);
    EXPECT_GE(counted(comm, "receives_read") + counted(comm, "receives_helped"), 1);
  });
}

TEST_P(MessagesOverShm, AllGoThroughTheArenaWhereReadingIsNotAllowed) {
  world(2, [](rc_comm*, int) {});  // threads that all ranks have are made before
  std::thread([] {
    forbid_reading();
    world(2, [](rc_comm* comm, int rank) {
      for (size_t bytes : kSizes) there_and_back(comm, rank, bytes);
      EXPECT_EQ(counted(comm, "receives_read") + counted(comm, "receives_helped"), 0);
    });
  }).join();
}

// Short ones lie in memory of the sender's communicator, which may be another's by then.
TEST_P(MessagesOverShm, AreTakenThoughTheSendersCommunicatorHasEnded) {
  world(2, [](rc_comm* comm, int rank) {
    const std::array<int32_t, 2> both = {0, 1};
    auto split_off = [&] {
      rc_comm* part = nullptr;
      EXPECT_EQ(ringcoll_comm_split(comm, both.data(), 2, "part", &part), RC_OK) << error_text();
      return part;
    };
    const std::vector<size_t> sizes = {2 * kKiB, 8 * kKiB, 4 * kKiB};
    rc_comm* first = split_off();
    there_and_back(first, rank, 10);
    if (rank == 0) {
      for (size_t bytes : sizes) send(first, content(bytes, 3), 1, 7);
      ringcoll_comm_destroy(first);
    }
    rc_comm* second = split_off();
    for (size_t bytes : sizes) there_and_back(second, rank, bytes);
    if (rank == 1) {
      for (size_t bytes : sizes)
        EXPECT_TRUE(receive(first, 0, 7, bytes) == content(bytes, 3)) << bytes;
      ringcoll_comm_destroy(first);
    }
    ringcoll_comm_destroy(second);
  });
}

// A send that has failed is over: what it lent is the caller's, whatever the receiver is doing.
TEST_P(MessagesOverShm, WhatAnAbortedSendLentMayBeUnmapped) {
  for (int turn = 0; turn < 30; turn++)
    world(2, [turn](rc_comm* comm, int rank) {
      constexpr size_t kBytes = size_t{4} << 20;
      if (rank == 1) {
        std::vector<uint8_t> room(kBytes);
        rc_message message = message_of(room.data(), kBytes, 0, 1);
        bool failed = ringcoll_recv(comm, &message, nullptr) != RC_OK;
        EXPECT_TRUE(failed || std::ranges::all_of(room, [](uint8_t byte) { return byte == 5; }));
        return;
      }
      void* memory =
          ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      std::memset(memory, 5, kBytes);
      rc_message message = message_of(memory, kBytes, 1, 1);
      rc_request* request = nullptr;
      ASSERT_EQ(ringcoll_isend(comm, &message, &request), RC_OK) << error_text();
      std::this_thread::sleep_for(std::chrono::microseconds(turn * 100));  // somewhere in it
      ringcoll_comm_abort(comm, "enough");
      int done = 0;
      ringcoll_wait(request, -1, &done);
      std::memset(memory, 6, kBytes);
      ::munmap(memory, kBytes);
      ringcoll_request_free(request);
    });
}

TEST_P(MessagesOver, AllRanksExchangeAtOnceBesideCollectives) {
  world(4, [](rc_comm* comm, int rank) {
    std::thread sums([&] {
      for (int i = 0; i < 50; i++) {
        std::vector<float> x(3000, 1);
        rc_buffer buffer{x.data(), x.data(), 3000};
        rc_call call = sum_of(&buffer);
        EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
        EXPECT_EQ(x[7], 4);
      }
    });
    for (int i = 0; i < 20; i++) {
      size_t bytes = static_cast<size_t>(i) * i * 500;
      std::vector<std::vector<uint8_t>> in(4), out(4);
      std::vector<rc_request*> requests;
      for (int peer = 0; peer < 4; peer++) {
        in[peer].resize(bytes);
        out[peer] = content(bytes, rank * 4 + peer);
        rc_message to = message_of(in[peer].data(), static_cast<int64_t>(bytes), peer, i);
        rc_message from = message_of(out[peer].data(), static_cast<int64_t>(bytes), peer, i);
        requests.resize(requests.size() + 2);
        EXPECT_EQ(ringcoll_irecv(comm, &to, &requests[requests.size() - 2]), RC_OK);
        EXPECT_EQ(ringcoll_isend(comm, &from, &requests.back()), RC_OK);
      }
      for (rc_request* request : requests) wait_and_free(request);
      for (int peer = 0; peer < 4; peer++)
        EXPECT_TRUE(in[peer] == content(bytes, peer * 4 + rank)) << i << " from " << peer;
    }
    sums.join();
  });
}

TEST_P(MessagesOver, InAGroupThatWasSplitOff) {
  world(3, [](rc_comm* comm, int rank) {
    std::vector<int32_t> ranks = {2, 0};
    rc_comm* sub = nullptr;
    ASSERT_EQ(ringcoll_comm_split(comm, ranks.data(), rank == 1 ? 0 : 2, "sub", &sub), RC_OK)
        << error_text();
    if (rank == 2) send(sub, content(50'000, 1), 1, 3);
    if (rank == 0) {
      EXPECT_TRUE(receive(sub, 0, 3, 60'000) == content(50'000, 1));
    }
    ringcoll_comm_destroy(sub);
  });
}

TEST_P(MessagesOver, WhoHasReceivedMayLeaveAtOnce) {
  world(2, [](rc_comm* comm, int rank) {
    std::vector<int32_t> ranks = {0, 1};
    for (int turn = 0; turn < 30; turn++) {
      rc_comm* sub = nullptr;
      ASSERT_EQ(ringcoll_comm_split(comm, ranks.data(), 2, "sub", &sub), RC_OK) << error_text();
      size_t bytes = std::array{5'000, 50'000, 500'000}[turn % 3];
      if (rank == 0) send(sub, content(bytes, turn), 1, 3);
      if (rank == 1) {
        EXPECT_TRUE(receive(sub, 0, 3, bytes) == content(bytes, turn));
      }
      ringcoll_comm_destroy(sub);
    }
  });
}

TEST_P(MessagesOver, OneThatIsTooLongIsToldAndStays) {
  world(2, [](rc_comm* comm, int rank) {
    for (size_t bytes : {size_t{100}, size_t{100'000}}) {
      if (rank == 1) {
        send(comm, content(bytes, 1), 0, 5);
        continue;
      }
      std::vector<uint8_t> small(10);
      rc_message message = message_of(small.data(), 10, 1, 5);
      rc_message_info info = no_info();
      EXPECT_EQ(ringcoll_recv(comm, &message, &info), RC_TOO_LONG);
      EXPECT_NE(error_text().find(std::to_string(bytes) + " bytes"), std::string::npos);
      EXPECT_EQ(ringcoll_error_rank(), 1);
      EXPECT_EQ(info.source, 1);
      EXPECT_EQ(info.tag, 5);
      EXPECT_EQ(info.bytes, static_cast<int64_t>(bytes));
      EXPECT_TRUE(receive(comm, info.source, info.tag, bytes) == content(bytes, 1));
    }
  });
}

TEST_P(MessagesOver, AbortEndsWhatIsUnderWay) {
  world(2, [](rc_comm* comm, int rank) {
    std::vector<uint8_t> data(1'000'000);
    rc_message message = message_of(data.data(), 1'000'000, 1 - rank, 1);
    rc_request *sending = nullptr, *receiving = nullptr;
    ASSERT_EQ(ringcoll_isend(comm, &message, &sending), RC_OK) << error_text();
    message.tag = 2;
    ASSERT_EQ(ringcoll_irecv(comm, &message, &receiving), RC_OK) << error_text();
    rc_call barrier{};
    barrier.struct_size = sizeof barrier;
    barrier.collective = RC_BARRIER;
    rc_status both = ringcoll_run(comm, &barrier);  // rank 1 may hear of the abort in it
    EXPECT_TRUE(both == RC_OK || (rank == 1 && both == RC_ABORTED)) << error_text();
    if (rank == 0) ringcoll_comm_abort(comm, "enough");
    wait_and_free(sending, RC_ABORTED);
    wait_and_free(receiving, RC_ABORTED);
    EXPECT_EQ(ringcoll_recv(comm, &message, nullptr), RC_ABORTED);
  });
}

struct Told {
  std::promise<rc_status> status;
  rc_message_info info = no_info();
};
void tell(void* state, rc_request* request, rc_status status) {
  auto* told = static_cast<Told*>(state);
  EXPECT_EQ(ringcoll_received(request, &told->info), RC_OK) << error_text();
  int done = 0;
  EXPECT_EQ(ringcoll_wait(request, -1, &done), status);
  ringcoll_request_free(request);
  told->status.set_value(status);
}

TEST_P(MessagesOver, ACallbackHearsOfTheEndAndMayFree) {
  world(2, [](rc_comm* comm, int rank) {
    if (rank == 1) {
      send(comm, content(30'000, 1), 0, 1);
      return send(comm, content(30, 1), 0, 2);
    }
    std::vector<uint8_t> data(40'000);
    Told good, too_long;
    rc_message message = message_of(data.data(), 40'000, RC_ANY_SOURCE, 1);
    message.done = tell;
    message.done_state = &good;
    rc_request* request = nullptr;
    ASSERT_EQ(ringcoll_irecv(comm, &message, &request), RC_OK) << error_text();
    EXPECT_EQ(good.status.get_future().get(), RC_OK);
    EXPECT_EQ(good.info.bytes, 30'000);
    message = message_of(data.data(), 3, 1, RC_ANY_TAG);
    message.done = tell;
    message.done_state = &too_long;
    ASSERT_EQ(ringcoll_irecv(comm, &message, &request), RC_OK) << error_text();
    EXPECT_EQ(too_long.status.get_future().get(), RC_TOO_LONG);
    EXPECT_EQ(too_long.info.bytes, 30);
    EXPECT_EQ(receive(comm, 1, 2, 30).size(), 30u);
  });
}

void start_next(void* state, rc_request*, rc_status status) {
  EXPECT_EQ(status, RC_OK);
  auto* comm = static_cast<rc_comm*>(state);
  char byte = 0;
  rc_message message = message_of(&byte, 1, 0, 9);
  EXPECT_EQ(ringcoll_send(comm, &message), RC_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("ringcoll_isend"), std::string::npos);
  static char kept = 1;
  message.data = &kept;
  rc_request* request = nullptr;
  EXPECT_EQ(ringcoll_isend(comm, &message, &request), RC_OK) << error_text();
  ringcoll_request_free(request);  // a short one: it has ended
}

TEST(Messages, ACallbackStartsAndDoesNotWait) {
  world(1, [](rc_comm* comm, int) {
    char in = 0, out = 3;
    rc_message message = message_of(&in, 1, 0, 1);
    message.done = start_next;
    message.done_state = comm;
    rc_request* request = nullptr;
    ASSERT_EQ(ringcoll_irecv(comm, &message, &request), RC_OK) << error_text();
    rc_message own = message_of(&out, 1, 0, 1);
    EXPECT_EQ(ringcoll_send(comm, &own), RC_OK) << error_text();
    EXPECT_EQ(receive(comm, 0, 9, 1), std::vector<uint8_t>{1});
    wait_and_free(request);
    EXPECT_EQ(in, 3);
  });
}

TEST(Messages, WhatCannotBeIsRefusedAndTheCommunicatorIsGood) {
  world(2, [](rc_comm* comm, int) {
    char byte = 0;
    rc_request* request = nullptr;
    auto refused = [&](rc_message message, bool receives, const char* text) {
      request = reinterpret_cast<rc_request*>(1);
      EXPECT_EQ(receives ? ringcoll_irecv(comm, &message, &request)
                         : ringcoll_isend(comm, &message, &request),
                RC_INVALID_ARGUMENT);
      EXPECT_EQ(request, nullptr);
      EXPECT_NE(error_text().find(text), std::string::npos) << error_text();
    };
    refused(message_of(&byte, 1, 2, 0), false, "destination 2");
    refused(message_of(&byte, 1, RC_ANY_SOURCE, 0), false, "destination -1");
    refused(message_of(&byte, 1, -2, 0), true, "source -2");
    refused(message_of(&byte, 1, 0, RC_ANY_TAG), false, "tag -1");
    refused(message_of(&byte, 1, 0, -2), true, "tag -2");
    refused(message_of(&byte, -1, 0, 0), true, "-1 bytes");
    refused(message_of(nullptr, 1, 0, 0), true, "NULL");
    rc_message late = message_of(&byte, 1, 0, 0);
    late.timeout_s = -1;
    refused(late, true, "timeout_s");
    late.timeout_s = std::numeric_limits<double>::quiet_NaN();
    refused(late, true, "timeout_s");
    rc_message unset = message_of(&byte, 1, 0, 0);
    unset.struct_size = 8;
    refused(unset, true, "rc_message.struct_size is 8");
    rc_message message = message_of(&byte, 1, 0, 0);
    message.done = tell;
    EXPECT_EQ(ringcoll_send(comm, &message), RC_INVALID_ARGUMENT);
    message.done = nullptr;
    rc_message_info info{};
    EXPECT_EQ(ringcoll_recv(comm, &message, &info), RC_INVALID_ARGUMENT);
    EXPECT_NE(error_text().find("rc_message_info.struct_size"), std::string::npos);
    EXPECT_EQ(ringcoll_isend(comm, &message, nullptr), RC_INVALID_ARGUMENT);
    EXPECT_EQ(ringcoll_isend(comm, nullptr, &request), RC_INVALID_ARGUMENT);
  });
}

TEST(Messages, ReceivedIsOfReceivesThatHaveEnded) {
  world(1, [](rc_comm* comm, int) {
    char byte = 0;
    rc_message_info info = no_info();
    rc_message message = message_of(&byte, 1, 0, 0);
    rc_request* request = nullptr;
    ASSERT_EQ(ringcoll_irecv(comm, &message, &request), RC_OK);
    EXPECT_EQ(ringcoll_received(request, &info), RC_INVALID_ARGUMENT);
    EXPECT_EQ(ringcoll_send(comm, &message), RC_OK);
    int done = 0;
    EXPECT_EQ(ringcoll_wait(request, -1, &done), RC_OK);
    EXPECT_EQ(ringcoll_received(request, &info), RC_OK);
    EXPECT_EQ(info.bytes, 1);
    ringcoll_request_free(request);
    ASSERT_EQ(ringcoll_isend(comm, &message, &request), RC_OK);
    EXPECT_EQ(ringcoll_received(request, &info), RC_INVALID_ARGUMENT);
    ringcoll_request_free(request);
    std::vector<float> x(1);
    rc_buffer buffer{x.data(), x.data(), 1};
    rc_call call = sum_of(&buffer);
    ASSERT_EQ(ringcoll_start(comm, &call, &request), RC_OK);
    EXPECT_EQ(ringcoll_received(request, &info), RC_INVALID_ARGUMENT);
    ringcoll_request_free(request);
  });
}

TEST(Messages, AreCounted) {
  world(2, [](rc_comm* comm, int rank) {
    if (rank == 0) send(comm, content(30, 1), 1, 1);
    if (rank == 0) send(comm, content(100'000, 1), 1, 1);
    if (rank == 1) receive(comm, 0, 1, 30);
    if (rank == 1) receive(comm, 0, 1, 100'000);
    char* json = nullptr;
    ASSERT_EQ(ringcoll_comm_stats(comm, &json), RC_OK);
    std::string stats = json;
    ringcoll_free(json);
    auto has = [&](const char* text) { return stats.find(text) != std::string::npos; };
    EXPECT_TRUE(has(rank == 0
                        ? "\"sends\":2,\"send_bytes\":100030,\"receives\":0"
                        : "\"sends\":0,\"send_bytes\":0,\"receives\":2,\"receive_bytes\":100030"))
        << stats;
  });
}

}  // namespace
}  // namespace ringcoll
