// Calls whose messages the links of a host copy when they are sent (HostLink::try_copy).
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "coll/world_testing.h"

namespace ringcoll {
namespace {

using testing::call_of;
using testing::Member;

Config config_with(int64_t handed_bytes, const std::string& algorithm = "") {
  Config config = testing::test_config("shm", algorithm);
  config.handed_bytes = handed_bytes;
  return config;
}
constexpr int64_t kCopiedBytes = 128 << 10;

/// A call whose every element is checked; in place, so that nothing may be overwritten too early.
void allreduce(Member& m, int64_t count, double prescale = 1, double postscale = 1) {
  std::vector<float> data(count);
  for (int64_t i = 0; i < count; i++) data[i] = static_cast<float>(i % 100 + m.rank);
  rc_buffer buffer{data.data(), data.data(), count};
  rc_call raw = call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&buffer, 1});
  raw.prescale = prescale;
  raw.postscale = postscale;
  run(m, raw);
  auto ranks = static_cast<double>(m.size);
  auto expected = [&](int64_t i) {
    double sum = ranks * static_cast<double>(i % 100) + ranks * (ranks - 1) / 2;
    return static_cast<float>(sum * prescale * postscale);
  };
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; i++) wrong += data[i] != expected(i);
  EXPECT_EQ(wrong, 0) << count << " elements on rank " << m.rank;
}

void broadcast(Member& m, int64_t count) {
  std::vector<float> data(count, m.rank == 0 ? 7.0f : 0.0f);
  rc_buffer buffer{data.data(), data.data(), count};
  run(m, call_of(RC_BROADCAST, RC_FLOAT32, RC_SUM, {&buffer, 1}));
  EXPECT_EQ(std::ranges::count(data, 7.0f), count);
}

TEST(CopiedCalls, TwoRanksWithoutAPrescaleCopyAllOfAnAllreduce) {
  testing::run_world(2, config_with(kCopiedBytes), [](Member& m) {
    for (int64_t count : {300, 5'000, 30'000, 100'000, 400'000}) {
      const Counters before = m.comm.counters();
      for (int i = 0; i < 5; i++) allreduce(m, count, 1, 0.5);
      const Counters& after = m.comm.counters();
      EXPECT_EQ(after.bytes_sent_copied - before.bytes_sent_copied,
                after.bytes_sent - before.bytes_sent)
          << count;
      EXPECT_EQ(after.bytes_packed, before.bytes_packed) << count;
    }
  });
}

// Many tensors are one call, as Horovod fuses them: a message is copied from all of them.
TEST(CopiedCalls, TensorsOfOneCallAreCopiedFromWhereTheyLie) {
  testing::run_world(2, config_with(kCopiedBytes), [](Member& m) {
    std::vector<std::vector<float>> tensors;
    std::vector<rc_buffer> buffers;
    for (int64_t count : {7, 0, 5'000, 1, 60'000, 300, 128})
      tensors.emplace_back(count, static_cast<float>(count + m.rank));
    for (auto& tensor : tensors)
      buffers.push_back({tensor.data(), tensor.data(), static_cast<int64_t>(tensor.size())});
    run(m, call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, buffers));
    for (auto& tensor : tensors) {
      auto sum = static_cast<float>(2 * tensor.size() + 1);
      EXPECT_EQ(std::ranges::count(tensor, sum), std::ssize(tensor)) << tensor.size();
    }
    EXPECT_EQ(m.comm.counters().bytes_packed, 0u);
    EXPECT_EQ(m.comm.counters().bytes_sent_copied, m.comm.counters().bytes_sent);
  });
}

TEST(CopiedCalls, AreRightWhateverIsScaledAndByWhateverSchedule) {
  for (const char* algorithm : {"", "ring", "recursive_doubling", "direct", "halving_doubling"})
    for (Rank size : {2, 3, 4})
      testing::run_world(size, config_with(kCopiedBytes, algorithm), [](Member& m) {
        for (int64_t count : {300, 5'000, 100'000, 700'000}) {
          allreduce(m, count);
          allreduce(m, count, 2);
          allreduce(m, count, 1, 0.5);
          allreduce(m, count, 4, 0.25);
        }
      });
}

// A root that only sends copies short messages, and packs longer ones.
TEST(CopiedCalls, AStreamInOneDirectionGoesOnBesideExchanges) {
  testing::run_world(2, config_with(kCopiedBytes), [](Member& m) {
    for (int turn = 0; turn < 5; turn++) {
      for (int i = 0; i < 50; i++) broadcast(m, i % 2 == 0 ? 200 : 3'000);
      for (int i = 0; i < 20; i++) allreduce(m, 10'000);
    }
    if (m.rank == 0) {
      EXPECT_EQ(m.comm.counters().bytes_packed, 5u * 25 * 3'000 * sizeof(float));
    }
  });
}

TEST(CopiedCalls, AreNoneWhereNoneAreWanted) {
  testing::run_world(2, config_with(0), [](Member& m) {
    for (int64_t count : {5'000, 400'000}) allreduce(m, count);
    EXPECT_EQ(m.comm.counters().bytes_sent_copied, 0u);
    allreduce(m, 100);
    EXPECT_GT(m.comm.counters().bytes_sent_copied, 0u) << "beside its flag";
  });
}

}  // namespace
}  // namespace ringcoll
