// Callers of the C ABI whose ranks are threads of one process.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "ringcoll/ringcoll.h"

namespace ringcoll::testing {

inline std::string error_text() { return ringcoll_error_message(); }

inline rc_comm* make(const std::string& store, int rank, int size, double timeout_s = 20) {
  rc_comm_options options{};
  options.struct_size = sizeof options;
  options.rank = rank;
  options.size = size;
  options.store = store.c_str();
  options.name = "test";
  options.timeout_s = timeout_s;
  rc_comm* comm = nullptr;
  EXPECT_EQ(ringcoll_comm_create(&options, &comm), RC_OK) << error_text();
  return comm;
}

/// `body(comm, rank)` on each rank, in a thread of its own.
template <typename Body>
void world(int size, Body body, double timeout_s = 20) {
  static std::atomic<int> worlds{0};
  std::string store = "local://engine" + std::to_string(worlds++);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; rank++)
    threads.emplace_back([&, rank] {
      rc_comm* comm = make(store, rank, size, timeout_s);
      if (comm) body(comm, rank);
      ringcoll_comm_destroy(comm);
    });
  for (auto& thread : threads) thread.join();
}

/// With ranks that talk over the transport that is the parameter.
class OverTransports : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { ::setenv("RINGCOLL_TRANSPORT", GetParam(), 1); }
  void TearDown() override { ::unsetenv("RINGCOLL_TRANSPORT"); }
};
/// While it lives, jobs that start have room for few groups: as under `ulimit -f`.
class FewGroups {
 public:
  FewGroups() {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit few = before_;
    few.rlim_cur = std::min<rlim_t>(before_.rlim_cur, rlim_t{2} << 30);
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &few), 0);
  }
  ~FewGroups() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

inline auto transports_of_one_process() { return ::testing::Values("loopback", "shm", "tcp"); }

/// Of one buffer of floats.
inline rc_call sum_of(rc_buffer* buffer) {
  rc_call call{};
  call.struct_size = sizeof call;
  call.collective = RC_ALLREDUCE;
  call.dtype = RC_FLOAT32;
  call.op = RC_SUM;
  call.buffers = buffer;
  call.buffer_count = 1;
  return call;
}

/// A call of one buffer that was started, with memory of its own.
struct Started {
  std::vector<float> data;
  rc_request* request = nullptr;

  explicit Started(size_t count = 1, float value = 1) : data(count, value) {}
  rc_status begin(rc_comm* comm, rc_collective collective = RC_ALLREDUCE, int root = 0,
                  double timeout_s = 0, rc_done_fn done = nullptr, void* done_state = nullptr) {
    rc_buffer buffer{data.data(), data.data(), static_cast<int64_t>(data.size())};
    rc_call call = sum_of(&buffer);
    call.collective = collective;
    call.root = root;
    call.timeout_s = timeout_s;
    call.done = done;
    call.done_state = done_state;
    return ringcoll_start(comm, &call, &request);
  }
};

/// A counter of ringcoll_comm_stats().
inline uint64_t counter_of(rc_comm* comm, const char* name) {
  char* text = nullptr;
  EXPECT_EQ(ringcoll_comm_stats(comm, &text), RC_OK) << error_text();
  auto stats = nlohmann::json::parse(text);
  ringcoll_free(text);
  return stats.at(name);
}

}  // namespace ringcoll::testing
