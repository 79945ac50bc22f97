// The C ABI as its users call it: ranks as threads, blocking and asynchronous calls, groups,
// errors.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "ringcoll/ringcoll.h"

namespace {

std::string error_text() { return ringcoll_error_message(); }

rc_comm* make(const std::string& store, int rank, int size) {
  rc_comm_options options{};
  options.struct_size = sizeof options;
  options.rank = rank;
  options.size = size;
  options.store = store.c_str();
  options.name = "test";
  options.timeout_s = 20;
  rc_comm* comm = nullptr;
  EXPECT_EQ(ringcoll_comm_create(&options, &comm), RC_OK) << error_text();
  return comm;
}

template <typename Body>
void world(int size, Body body) {
  static std::atomic<int> worlds{0};
  std::string store = "local://engine" + std::to_string(worlds++);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; rank++)
    threads.emplace_back([&, rank] {
      rc_comm* comm = make(store, rank, size);
      if (comm) body(comm, rank);
      ringcoll_comm_destroy(comm);
    });
  for (auto& thread : threads) thread.join();
}

rc_call sum_of(rc_buffer* buffer) {
  rc_call call{};
  call.struct_size = sizeof call;
  call.collective = RC_ALLREDUCE;
  call.dtype = RC_FLOAT32;
  call.op = RC_SUM;
  call.buffers = buffer;
  call.buffer_count = 1;
  return call;
}

TEST(Abi, BlockingAndAsynchronousCallsKeepTheirOrder) {
  world(3, [](rc_comm* comm, int rank) {
    EXPECT_EQ(ringcoll_comm_rank(comm), rank);
    EXPECT_EQ(ringcoll_comm_size(comm), 3);
    constexpr int kCalls = 20;
    std::vector<std::vector<float>> values;
    for (int i = 0; i < kCalls; i++) values.emplace_back(1000 * i + 1, 1.0f * i + rank);
    std::vector<rc_request*> requests(kCalls);
    for (int i = 0; i < kCalls; i++) {
      rc_buffer buffer{values[i].data(), values[i].data(), static_cast<int64_t>(values[i].size())};
      rc_call call = sum_of(&buffer);
      if (i % 5 == 4)
        EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
      else
        EXPECT_EQ(ringcoll_start(comm, &call, &requests[i]), RC_OK) << error_text();
    }
    for (int i = 0; i < kCalls; i++) {
      int done = 0;
      if (requests[i]) {
        EXPECT_EQ(ringcoll_wait(requests[i], -1, &done), RC_OK) << error_text();
      }
      EXPECT_EQ(values[i].back(), 3.0f * i + 3);
      ringcoll_request_free(requests[i]);
    }
  });
}

TEST(Abi, WaitWithALimitReturnsAndTheCallGoesOn) {
  world(2, [](rc_comm* comm, int rank) {
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    rc_request* request = nullptr;
    ASSERT_EQ(ringcoll_start(comm, &call, &request), RC_OK);
    int done = 1;
    if (rank == 0) {
      EXPECT_EQ(ringcoll_wait(request, 0.01, &done), RC_OK);
      EXPECT_EQ(done, 0);
    }
    EXPECT_EQ(ringcoll_wait(request, -1, &done), RC_OK);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(value, 2);
    ringcoll_request_free(request);
  });
}

// A call that was waited for is over: whoever then closes disturbs nobody who is still in it. The
// root has sent all it has to long before the last rank has it.
TEST(Abi, ARankMayCloseAsSoonAsItsRequestHasEnded) {
  for (int repeat = 0; repeat < 30; repeat++)
    world(12, [](rc_comm* comm, int rank) {
      float value = static_cast<float>(rank);
      rc_buffer buffer{&value, &value, 1};
      rc_call call = sum_of(&buffer);
      call.collective = RC_BROADCAST;
      rc_request* request = nullptr;
      ASSERT_EQ(ringcoll_start(comm, &call, &request), RC_OK) << error_text();
      int done = 0;
      EXPECT_EQ(ringcoll_wait(request, -1, &done), RC_OK) << error_text();
      EXPECT_EQ(value, 0);
      ringcoll_request_free(request);
    });
}

TEST(Abi, SplitMakesGroupsThatWorkAtTheSameTime) {
  world(5, [](rc_comm* comm, int rank) {
    std::vector<int32_t> even = {4, 2, 0}, odd = {1}, none;
    auto& group = rank == 3 ? none : rank % 2 ? odd : even;
    rc_comm* sub = nullptr;
    ASSERT_EQ(ringcoll_comm_split(comm, group.data(), group.size(), "half", &sub), RC_OK)
        << error_text();
    if (rank == 3) {
      EXPECT_EQ(sub, nullptr);
      return;
    }
    EXPECT_EQ(ringcoll_comm_size(sub), static_cast<int>(group.size()));
    if (rank % 2 == 0) {
      EXPECT_EQ(ringcoll_comm_rank(sub), 2 - rank / 2);
    }
    float value = static_cast<float>(rank);
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    EXPECT_EQ(ringcoll_run(sub, &call), RC_OK) << error_text();
    EXPECT_EQ(value, rank % 2 ? 1.0f : 6.0f);
    ringcoll_comm_destroy(sub);
  });
}

TEST(Abi, SplitRefusesABadGroupOnAllRanks) {
  world(2, [](rc_comm* comm, int rank) {
    std::vector<int32_t> good = {0, 1}, bad = {1, 7};
    auto& group = rank ? bad : good;
    rc_comm* sub = nullptr;
    EXPECT_EQ(ringcoll_comm_split(comm, group.data(), 2, "x", &sub), RC_INVALID_ARGUMENT);
    EXPECT_NE(error_text().find("7 is not a rank"), std::string::npos) << error_text();
    EXPECT_EQ(sub, nullptr);
  });
}

TEST(Abi, AbortReachesAllRanks) {
  // A call has ended on one rank before it has on others, and may be aborted there.
  std::latch ended(3);
  world(3, [&](rc_comm* comm, int rank) {
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    EXPECT_EQ(ringcoll_run(comm, &call), RC_OK);
    ended.arrive_and_wait();
    if (rank == 2) ringcoll_comm_abort(comm, "enough");
    EXPECT_EQ(ringcoll_run(comm, &call), RC_ABORTED) << error_text();
    EXPECT_NE(error_text().find("enough"), std::string::npos) << error_text();
    EXPECT_EQ(ringcoll_error_rank(), 2);
    EXPECT_EQ(ringcoll_run(comm, &call), RC_ABORTED);
  });
}

TEST(Abi, AnInvalidCallLeavesTheCommunicatorGood) {
  world(2, [](rc_comm* comm, int) {
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    call.op = RC_BIT_AND;
    EXPECT_EQ(ringcoll_run(comm, &call), RC_INVALID_ARGUMENT);
    rc_request* request = nullptr;
    EXPECT_EQ(ringcoll_start(comm, &call, &request), RC_INVALID_ARGUMENT);
    EXPECT_EQ(request, nullptr);
    call.op = RC_SUM;
    EXPECT_EQ(ringcoll_run(comm, &call), RC_OK);
    EXPECT_EQ(value, 2);
  });
}

TEST(Abi, StatsCountWhatWasMoved) {
  world(2, [](rc_comm* comm, int rank) {
    std::vector<float> values(1 << 20, 1);
    rc_buffer buffer{values.data(), values.data(), 1 << 20};
    rc_call call = sum_of(&buffer);
    ASSERT_EQ(ringcoll_run(comm, &call), RC_OK);
    char* text = nullptr;
    ASSERT_EQ(ringcoll_comm_stats(comm, &text), RC_OK);
    auto stats = nlohmann::json::parse(text);
    ringcoll_free(text);
    EXPECT_EQ(stats["rank"], rank);
    EXPECT_EQ(stats["size"], 2);
    EXPECT_EQ(stats["calls"], 1);
    EXPECT_EQ(stats["bytes_sent"], 4 << 20);
    EXPECT_EQ(stats["bytes_received"], 4 << 20);
    EXPECT_EQ(stats["peers"].size(), 2u);
  });
}

TEST(Abi, InfoListsRegistriesAndKnobs) {
  char* text = nullptr;
  ASSERT_EQ(ringcoll_info(&text), RC_OK) << error_text();
  auto info = nlohmann::json::parse(text);
  ringcoll_free(text);
  EXPECT_EQ(info["version"], ringcoll_version());
  EXPECT_EQ(ringcoll_abi_version(), RINGCOLL_ABI_VERSION);
  EXPECT_GE(info["transports"].size(), 3u);
  EXPECT_GE(info["schedules"].size(), 9u);
  EXPECT_GE(info["knobs"].size(), 10u);
}

TEST(Abi, RefusesABadStore) {
  rc_comm_options options{};
  options.struct_size = sizeof options;
  options.size = 2;
  options.timeout_s = 1;
  rc_comm* comm = nullptr;
  EXPECT_EQ(ringcoll_comm_create(&options, &comm), RC_INVALID_ARGUMENT);
  options.store = "ftp://x";
  EXPECT_EQ(ringcoll_comm_create(&options, &comm), RC_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("ftp"), std::string::npos) << error_text();
  EXPECT_EQ(comm, nullptr);
}

}  // namespace
