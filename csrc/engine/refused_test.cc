// What callers of the C ABI pass that cannot be right: an error, and nothing has happened.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/abi_testing.h"
#include "ringcoll/ringcoll.h"

namespace ringcoll {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

rc_comm* alone() {
  rc_comm_options options{};
  options.struct_size = sizeof options;
  options.size = 1;
  options.store = "local://refused";
  options.name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  rc_comm* comm = nullptr;
  EXPECT_EQ(ringcoll_comm_create(&options, &comm), RC_OK) << ringcoll_error_message();
  return comm;
}

class Refused : public ::testing::Test {
 protected:
  Refused() { call.buffers = &buffer; }
  ~Refused() override { ringcoll_comm_destroy(comm); }

  /// Refused by both that take a call, and the communicator is still good.
  void expect_refused(const std::string& why) {
    rc_request* request = reinterpret_cast<rc_request*>(&call);
    EXPECT_EQ(ringcoll_run(comm, &call), RC_INVALID_ARGUMENT) << why;
    EXPECT_STRNE(ringcoll_error_message(), "");
    EXPECT_EQ(ringcoll_start(comm, &call, &request), RC_INVALID_ARGUMENT) << why;
    EXPECT_STRNE(ringcoll_error_message(), "");
    EXPECT_EQ(request, nullptr) << why;
    rc_call barrier{.struct_size = sizeof barrier, .collective = RC_BARRIER};
    EXPECT_EQ(ringcoll_run(comm, &barrier), RC_OK) << why << ringcoll_error_message();
  }

  rc_comm* comm = alone();
  float memory[4] = {1, 2, 3, 4};
  rc_buffer buffer{memory, memory, 4};
  rc_call call{.struct_size = sizeof(rc_call),
               .collective = RC_ALLREDUCE,
               .dtype = RC_FLOAT32,
               .op = RC_SUM,
               .buffer_count = 1};
};

TEST_F(Refused, NullHandlesAndPlaces) {
  rc_comm* made = nullptr;
  rc_request* request = nullptr;
  char* json = nullptr;
  int done = 7;
  rc_message message{.struct_size = sizeof message, .data = memory, .bytes = 4};
  rc_message_info info{.struct_size = sizeof info};
  const rc_status statuses[] = {
      ringcoll_comm_create(nullptr, &made),
      ringcoll_comm_split(nullptr, nullptr, 0, nullptr, &made),
      ringcoll_comm_split(comm, nullptr, 1, nullptr, &made),
      ringcoll_comm_split(comm, nullptr, 0, nullptr, nullptr),
      ringcoll_comm_shrink(nullptr, nullptr, &made),
      ringcoll_comm_shrink(comm, nullptr, nullptr),
      ringcoll_comm_stats(nullptr, &json),
      ringcoll_comm_stats(comm, nullptr),
      ringcoll_run(nullptr, &call),
      ringcoll_run(comm, nullptr),
      ringcoll_start(nullptr, &call, &request),
      ringcoll_start(comm, nullptr, &request),
      ringcoll_start(comm, &call, nullptr),
      ringcoll_send(nullptr, &message),
      ringcoll_send(comm, nullptr),
      ringcoll_recv(nullptr, &message, &info),
      ringcoll_recv(comm, nullptr, nullptr),
      ringcoll_isend(nullptr, &message, &request),
      ringcoll_isend(comm, nullptr, &request),
      ringcoll_isend(comm, &message, nullptr),
      ringcoll_irecv(nullptr, &message, &request),
      ringcoll_irecv(comm, &message, nullptr),
      ringcoll_received(nullptr, &info),
      ringcoll_wait(nullptr, 0, &done),
      ringcoll_info(nullptr),
      ringcoll_simulate(nullptr, &json),
      ringcoll_simulate("{}", nullptr),
  };
  for (size_t i = 0; i < std::size(statuses); i++) EXPECT_EQ(statuses[i], RC_INVALID_ARGUMENT) << i;
  EXPECT_EQ(done, 0);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(request, nullptr);
  EXPECT_EQ(ringcoll_comm_rank(nullptr), -1);
  EXPECT_EQ(ringcoll_comm_size(nullptr), 0);
  ringcoll_comm_abort(nullptr, "nothing");
  ringcoll_comm_destroy(nullptr);
  ringcoll_request_free(nullptr);
  ringcoll_free(nullptr);
}

// A caller who frees what it has been given, whatever became of it, frees nothing of its own.
TEST_F(Refused, WhatIsNotMadeIsNull) {
  rc_comm_options options{.struct_size = sizeof options, .size = -1};
  rc_message message{.struct_size = sizeof message, .data = memory, .bytes = 4, .tag = -2};
  const int32_t nobody = 5;
  using MakeComm = std::function<rc_status(rc_comm**)>;
  for (const MakeComm& make :
       {MakeComm([&](rc_comm** made) { return ringcoll_comm_create(&options, made); }),
        MakeComm([&](rc_comm** made) { return ringcoll_comm_split(comm, &nobody, 1, "", made); }),
        MakeComm([&](rc_comm** made) { return ringcoll_comm_shrink(nullptr, "", made); })}) {
    rc_comm* made = comm;
    EXPECT_NE(make(&made), RC_OK);
    EXPECT_EQ(made, nullptr) << ringcoll_error_message();
  }
  for (auto start : {ringcoll_isend, ringcoll_irecv}) {
    auto* request = reinterpret_cast<rc_request*>(&message);
    EXPECT_EQ(start(comm, &message, &request), RC_INVALID_ARGUMENT);
    EXPECT_EQ(request, nullptr) << ringcoll_error_message();
  }
}

TEST_F(Refused, CountsWhoseBytesNoMemoryHolds) {
  for (rc_collective collective : {RC_ALLREDUCE, RC_BROADCAST, RC_REDUCE, RC_ALLGATHER,
                                   RC_REDUCE_SCATTER, RC_GATHER, RC_SCATTER, RC_ALLTOALL})
    for (int64_t count : {int64_t{-1}, std::numeric_limits<int64_t>::min(), kHuge, kHuge / 4 + 1,
                          int64_t{1} << 46}) {
      call.collective = collective;
      buffer.count = count;
      expect_refused(std::to_string(collective) + " of " + std::to_string(count));
    }
}

TEST_F(Refused, SumsThatOverflow) {
  std::vector<rc_buffer> many(3, rc_buffer{memory, memory, kHuge / 16});
  call.buffers = many.data();
  call.buffer_count = 3;
  expect_refused("buffers");
  int64_t counts[] = {kHuge / 2};
  call.buffers = &buffer;
  call.buffer_count = 1;
  call.counts = counts;
  call.collective = RC_ALLGATHER;
  expect_refused("counts");
  call.collective = RC_ALLTOALL;
  call.recv_counts = counts;
  expect_refused("recv_counts");
}

// Memory for so many is not even asked for.
TEST_F(Refused, MoreRanksThanCanMeet) {
  for (int32_t size : {(1 << 20) + 1, std::numeric_limits<int32_t>::max()}) {
    rc_comm_options options{.struct_size = sizeof options, .rank = size - 1, .size = size};
    options.store = "local://refused-size";
    options.timeout_s = 0.01;
    rc_comm* made = nullptr;
    EXPECT_EQ(ringcoll_comm_create(&options, &made), RC_INVALID_ARGUMENT) << size;
    EXPECT_EQ(made, nullptr);
  }
}

TEST_F(Refused, AnAlltoallThatSendsItselfWhatItDoesNotReceive) {
  float there[4] = {};
  int64_t sent = 2;
  buffer.output = there;
  call.collective = RC_ALLTOALL;
  call.counts = &sent;
  for (int64_t received : {0, 1, 3}) {
    call.recv_counts = &received;
    expect_refused(std::to_string(received));
  }
  call.counts = call.recv_counts = nullptr;
}

TEST_F(Refused, NumbersOfBuffers) {
  for (int64_t count : {int64_t{-1}, std::numeric_limits<int64_t>::min(), kHuge, kHuge / 24 + 1}) {
    call.buffer_count = count;
    expect_refused(std::to_string(count) + " buffers");
  }
  call.buffer_count = 1;
  call.buffers = nullptr;
  expect_refused("no buffers");
}

TEST_F(Refused, NumbersThatAreNoneOfAnEnumeration) {
  const rc_call good = call;
  for (int32_t number :
       {-1, 13, 100, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()})
    for (size_t field :
         {offsetof(rc_call, collective), offsetof(rc_call, dtype), offsetof(rc_call, op)}) {
      call = good;
      std::memcpy(reinterpret_cast<char*>(&call) + field, &number, sizeof number);
      expect_refused("field at " + std::to_string(field) + ": " + std::to_string(number));
    }
}

TEST_F(Refused, Roots) {
  for (int32_t root : {-1, 1, std::numeric_limits<int32_t>::min()}) {
    call.collective = RC_BROADCAST;
    call.root = root;
    expect_refused("root " + std::to_string(root));
  }
}

TEST_F(Refused, NumbersThatAreNone) {
  call.prescale = kNan;
  expect_refused("prescale");
  call.prescale = 0;
  call.postscale = HUGE_VAL;
  expect_refused("postscale");
  call.postscale = 0;
  call.timeout_s = kNan;
  expect_refused("timeout_s");
}

TEST_F(Refused, Messages) {
  rc_message message{.struct_size = sizeof message, .data = memory, .bytes = 4};
  rc_request* request = nullptr;
  for (int64_t bytes : {int64_t{-1}, kHuge, std::numeric_limits<int64_t>::min()}) {
    message.bytes = bytes;
    EXPECT_EQ(ringcoll_send(comm, &message), RC_INVALID_ARGUMENT);
    EXPECT_EQ(ringcoll_irecv(comm, &message, &request), RC_INVALID_ARGUMENT);
  }
  message.bytes = 4;
  for (int32_t peer : {-2, 1, std::numeric_limits<int32_t>::max()}) {
    message.peer = peer;
    EXPECT_EQ(ringcoll_isend(comm, &message, &request), RC_INVALID_ARGUMENT);
    EXPECT_EQ(ringcoll_recv(comm, &message, nullptr), RC_INVALID_ARGUMENT);
  }
  EXPECT_EQ(request, nullptr);
}

// What is wrong is named without a walk through it: that takes a stack as deep as it is.
TEST(RefusedSimulation, ValuesOfAnyDepth) {
  const std::string deep = std::string(1 << 18, '[') + std::string(1 << 18, ']');
  const std::string good =
      R"("collective":"barrier","sizes":[4],"levels":[{"level":"host","ranks":1}])";
  for (const std::string& request :
       {deep, "{\"collective\":" + deep + "}", "{\"dtype\":" + deep + "," + good + "}",
        "{\"collective\":\"barrier\",\"sizes\":" + deep + "}",
        "{\"slots\":" + deep + "," + good + "}",
        "{\"combined_bytes_per_us\":" + deep + "," + good + "}"}) {
    char* json = nullptr;
    EXPECT_EQ(ringcoll_simulate(request.c_str(), &json), RC_INVALID_ARGUMENT)
        << request.substr(0, 40);
    EXPECT_EQ(json, nullptr);
    EXPECT_LT(std::string(ringcoll_error_message()).size(), 1000u);
  }
}

// Nothing is read where there are no elements, so the addresses may be any.
TEST_F(Refused, NothingIsReadOfNoElements) {
  for (uintptr_t address : {uintptr_t{0}, uintptr_t{1}, ~uintptr_t{0}, uintptr_t{1} << 63}) {
    auto* anywhere = reinterpret_cast<void*>(address);
    for (int collective = 0; collective < RC_BARRIER; collective++) {
      call.collective = static_cast<rc_collective>(collective);
      buffer = {anywhere, anywhere, 0};
      EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << ringcoll_error_message();
      buffer = {memory, anywhere, 0};
      EXPECT_EQ(ringcoll_run(comm, &call), RC_OK) << ringcoll_error_message();
    }
  }
}

}  // namespace
}  // namespace ringcoll
