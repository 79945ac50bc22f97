// The C ABI as its users call it: ranks as threads, blocking and asynchronous calls, groups,
// errors.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <latch>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/abi_testing.h"
#include "ringcoll/ringcoll.h"

namespace {

using namespace ringcoll::testing;

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

// The call and its arrays are the caller's again as soon as it has started.
TEST(Abi, AStartedCallKeepsItsOwnCounts) {
  world(2, [](rc_comm* comm, int rank) {
    constexpr int kCalls = 8;
    std::vector<std::vector<int32_t>> in(kCalls, std::vector<int32_t>(3)), out = in;
    std::vector<rc_request*> requests(kCalls);
    // Rank 0 is ahead: its calls are still in the queue when the arrays change.
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    int64_t sends[2], receives[2];
    rc_buffer buffer{};
    rc_call call = sum_of(&buffer);
    call.collective = RC_ALLTOALL;
    call.dtype = RC_INT32;
    call.counts = sends;
    call.recv_counts = receives;
    for (int i = 0; i < kCalls; i++) {
      in[i] = {10 * i + rank, 10 * i + 2 + rank, 10 * i + 4 + rank};
      buffer = {in[i].data(), out[i].data(), 0};
      sends[0] = receives[0] = rank == 0 ? 1 : 2;
      sends[1] = receives[1] = rank == 0 ? 2 : 1;
      ASSERT_EQ(ringcoll_start(comm, &call, &requests[i]), RC_OK) << error_text();
      sends[0] = sends[1] = receives[0] = receives[1] = 0;
      buffer = {};
    }
    for (int i = 0; i < kCalls; i++) {
      int done = 0;
      EXPECT_EQ(ringcoll_wait(requests[i], -1, &done), RC_OK) << error_text();
      ringcoll_request_free(requests[i]);
      auto want = rank == 0 ? std::vector<int32_t>{10 * i, 10 * i + 1, 10 * i + 3}
                            : std::vector<int32_t>{10 * i + 2, 10 * i + 4, 10 * i + 5};
      EXPECT_EQ(out[i], want) << i;
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

TEST(Abi, ADeadlineMayBeForEver) {
  for (double for_ever : {1e10, std::numeric_limits<double>::infinity()})
    world(
        2,
        [&](rc_comm* comm, int rank) {
          float value = 1;
          rc_buffer buffer{&value, &value, 1};
          rc_call call = sum_of(&buffer);
          if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
          rc_request* request = nullptr;
          ASSERT_EQ(ringcoll_start(comm, &call, &request), RC_OK) << error_text();
          int done = 0;
          EXPECT_EQ(ringcoll_wait(request, for_ever, &done), RC_OK) << error_text();
          EXPECT_EQ(done, 1);
          EXPECT_EQ(value, 2);
          ringcoll_request_free(request);
        },
        for_ever);
}

TEST(Abi, TheDeadlineOfTheOptionsCounts) {
  rc_comm_options options{};
  options.struct_size = sizeof options;
  options.size = 2;
  options.store = "local://nobody-else-comes";
  options.timeout_s = 0.2;
  rc_comm* comm = nullptr;
  auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ringcoll_comm_create(&options, &comm), RC_TIMEOUT) << error_text();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Abi, ADeadlineIsNotNegativeAndIsANumber) {
  for (double nonsense : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    rc_comm_options options{};
    options.struct_size = sizeof options;
    options.size = 1;
    options.store = "local://deadline";
    options.timeout_s = nonsense;
    rc_comm* comm = nullptr;
    EXPECT_EQ(ringcoll_comm_create(&options, &comm), RC_INVALID_ARGUMENT);
    EXPECT_NE(error_text().find("timeout_s"), std::string::npos) << error_text();
  }
}

// For the thread sanitizer: calls run on the worker while this thread reads what they count.
TEST(Abi, StatsMayBeAskedForWhileACallRuns) {
  world(2, [](rc_comm* comm, int) {
    std::vector<float> values(1 << 20, 1);
    rc_buffer buffer{values.data(), values.data(), 1 << 20};
    rc_call call = sum_of(&buffer);
    rc_request* request = nullptr;
    ASSERT_EQ(ringcoll_start(comm, &call, &request), RC_OK) << error_text();
    uint64_t calls = 0, before = 0;
    for (int done = 0; done == 0; before = calls) {
      char* text = nullptr;
      ASSERT_EQ(ringcoll_comm_stats(comm, &text), RC_OK) << error_text();
      calls = nlohmann::json::parse(text)["calls"];
      ringcoll_free(text);
      EXPECT_GE(calls, before);
      ASSERT_EQ(ringcoll_wait(request, 0, &done), RC_OK) << error_text();
    }
    ringcoll_request_free(request);
    EXPECT_LE(calls, 1u);
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

// The masks of blocked signals of this process's threads with a name that begins so.
std::vector<uint64_t> blocked_signals(const std::string& name) {
  std::vector<uint64_t> masks;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string field, value;
    bool named = false;
    while (status >> field >> value) {
      if (field == "Name:") named = value.starts_with(name);
      if (field == "SigBlk:" && named) masks.push_back(std::stoull(value, nullptr, 16));
      status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
  }
  return masks;
}

TEST(Abi, SignalsAreLeftToTheApplicationsThreads) {
  world(1, [](rc_comm* comm, int) {
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    rc_call call = sum_of(&buffer);
    rc_request* request = nullptr;
    ASSERT_EQ(ringcoll_start(comm, &call, &request), RC_OK) << error_text();
    ringcoll_request_free(request);
    // Who waited may have executed before the worker has run at all.
    for (int i = 0; i < 1000 && blocked_signals("ringcoll-worker").empty(); i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(blocked_signals("ringcoll-worker").size(), 1u);
    for (uint64_t mask : blocked_signals("ringcoll"))
      for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD})
        EXPECT_TRUE(mask >> (signal - 1) & 1) << signal;
  });
}

TEST(Abi, DestroyEndsCallsThatRunAndThatHaveNotBegun) {
  std::string store = "local://engine-destroyed";
  std::latch over(2);
  auto other = std::async(std::launch::async, [&] {
    rc_comm* comm = make(store, 1, 2);
    over.arrive_and_wait();
    ringcoll_comm_destroy(comm);
  });
  rc_comm* comm = make(store, 0, 2);
  float value = 1;
  rc_buffer buffer{&value, &value, 1};
  rc_call call = sum_of(&buffer);
  std::vector<rc_request*> requests(4);
  for (rc_request*& request : requests)
    EXPECT_EQ(ringcoll_start(comm, &call, &request), RC_OK) << error_text();
  int done = 1;
  EXPECT_EQ(ringcoll_wait(requests.front(), 0.1, &done), RC_OK) << error_text();
  EXPECT_EQ(done, 0) << "the other rank makes no call";
  ringcoll_comm_destroy(comm);
  for (rc_request* request : requests) {
    EXPECT_EQ(ringcoll_wait(request, 5, &done), RC_ABORTED) << error_text();
    EXPECT_EQ(done, 1) << "nobody ends it any more";
    if (done) ringcoll_request_free(request);
  }
  over.arrive_and_wait();
  other.get();
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
    std::vector<int32_t> good = {0, 1};
    for (const auto& [bad, why] : std::vector<std::pair<std::vector<int32_t>, std::string>>{
             {{1, 7}, "7 is not a rank"},
             {{-1, 1}, "-1 is not a rank"},
             {{1, 1}, "rank 1 is named twice"},
             {{0}, "rank 1 is not in the group"}}) {
      auto& group = rank ? bad : good;
      rc_comm* sub = nullptr;
      EXPECT_EQ(ringcoll_comm_split(comm, group.data(), group.size(), "x", &sub),
                RC_INVALID_ARGUMENT);
      EXPECT_NE(error_text().find(why), std::string::npos) << error_text();
      EXPECT_EQ(sub, nullptr);
    }
  });
}

// Other ranks, others in another order, or none: whoever of three names them.
TEST(Abi, GroupsThatDisagreeAreAMismatchOfAllRanks) {
  using Group = std::vector<int32_t>;
  struct Case {
    Group all, one;
    const char *of_all, *of_one;
  };
  const Case cases[] = {{{0, 1, 2}, {1, 0, 2}, "names 0, 1, 2", "names 1, 0, 2"},
                        {{2, 1, 0}, {0, 1, 2}, "names 2, 1, 0", "names 0, 1, 2"},
                        {{0, 1, 2}, {}, "names 0, 1, 2", "names none"}};
  for (const Case& each : cases)
    for (int deviating = 0; deviating < 3; deviating++)
      world(3, [&](rc_comm* comm, int rank) {
        const Group& group = rank == deviating ? each.one : each.all;
        rc_comm* sub = nullptr;
        EXPECT_EQ(
            ringcoll_comm_split(comm, group.data(), static_cast<int32_t>(group.size()), "x", &sub),
            RC_MISMATCH);
        for (const char* text : {"disagree about the group", each.of_all, each.of_one})
          EXPECT_NE(error_text().find(text), std::string::npos) << error_text();
        EXPECT_EQ(sub, nullptr);
        EXPECT_EQ(ringcoll_comm_split(comm, group.data(), 0, "x", &sub), RC_MISMATCH);
      });
}

// A group of two ranks, of which one is named by a third, too.
TEST(Abi, GroupsThatShareARankAreAMismatch) {
  world(3, [](rc_comm* comm, int rank) {
    std::vector<int32_t> pair = {0, 1}, all = {0, 1, 2};
    auto& group = rank == 0 ? pair : all;
    rc_comm* sub = nullptr;
    EXPECT_EQ(
        ringcoll_comm_split(comm, group.data(), static_cast<int32_t>(group.size()), "x", &sub),
        RC_MISMATCH);
    for (const char* text : {"names 0, 1;", "names 0, 1, 2"})
      EXPECT_NE(error_text().find(text), std::string::npos) << error_text();
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

// JSON is UTF-8, and what callers and environments name need not be.
TEST(Abi, TextsOfAnyBytesMakeJsonAllTheSame) {
  rc_comm_options options{.struct_size = sizeof options, .size = 1};
  options.store = "local://\xff";
  options.name = "a\xff\xc3";
  rc_comm* comm = nullptr;
  ASSERT_EQ(ringcoll_comm_create(&options, &comm), RC_OK) << error_text();
  char* text = nullptr;
  ASSERT_EQ(ringcoll_comm_stats(comm, &text), RC_OK) << error_text();
  EXPECT_EQ(nlohmann::json::parse(text)["name"], "a\ufffd\ufffd");
  ringcoll_free(text);
  ringcoll_comm_destroy(comm);
  ::setenv("RINGCOLL_COSTS", "/nonexistent/\xff", 1);
  rc_status status = ringcoll_info(&text);
  ::unsetenv("RINGCOLL_COSTS");
  ASSERT_EQ(status, RC_OK) << error_text();
  EXPECT_NE(nlohmann::json::parse(text)["costs"].dump().find("nonexistent"), std::string::npos);
  ringcoll_free(text);
}

TEST(Abi, InfoListsRegistriesAndKnobs) {
  char* text = nullptr;
  ASSERT_EQ(ringcoll_info(&text), RC_OK) << error_text();
  auto info = nlohmann::json::parse(text);
  ringcoll_free(text);
  EXPECT_EQ(info["version"], ringcoll_version());
  EXPECT_EQ(ringcoll_abi_version(), RINGCOLL_ABI_VERSION);
  EXPECT_EQ(ringcoll_abi_revision(), RINGCOLL_ABI_REVISION);
  EXPECT_EQ(info["abi"], RINGCOLL_ABI_VERSION);
  EXPECT_EQ(info["abi_revision"], RINGCOLL_ABI_REVISION);
  EXPECT_GE(info["transports"].size(), 3u);
  EXPECT_GE(info["schedules"].size(), 9u);
  EXPECT_GE(info["knobs"].size(), 10u);
}

TEST(Abi, RefusesOptionsAndCallsOfAnotherVersion) {
  rc_comm_options good{};
  good.struct_size = sizeof good;
  good.size = 1;
  good.store = "local://engine-versions";
  rc_comm* comm = nullptr;
  auto refused = [&](auto change) {
    rc_comm_options options = good;
    change(options);
    return ringcoll_comm_create(&options, &comm) == RC_INVALID_ARGUMENT;
  };
  EXPECT_TRUE(refused([](rc_comm_options& o) { o.struct_size--; }));
  EXPECT_TRUE(refused([](rc_comm_options& o) { o.size = 0; }));
  EXPECT_TRUE(refused([](rc_comm_options& o) { o.rank = -1; }));
  EXPECT_TRUE(refused([](rc_comm_options& o) { o.rank = 1; }));
  EXPECT_EQ(ringcoll_comm_create(nullptr, &comm), RC_INVALID_ARGUMENT);
  EXPECT_EQ(ringcoll_comm_create(&good, nullptr), RC_INVALID_ARGUMENT);
  EXPECT_EQ(comm, nullptr);
  ASSERT_EQ(ringcoll_comm_create(&good, &comm), RC_OK) << error_text();
  rc_call call = sum_of(nullptr);
  call.buffer_count = 0;
  EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << error_text();
  call.struct_size--;
  EXPECT_EQ(ringcoll_run(comm, &call), RC_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("set it to sizeof(rc_call)"), std::string::npos) << error_text();
  EXPECT_EQ(ringcoll_run(comm, nullptr), RC_INVALID_ARGUMENT);
  ringcoll_comm_destroy(comm);
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
