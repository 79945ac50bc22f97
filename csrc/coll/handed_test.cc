// What goes from rank to rank of a host in buffers that are handed over (Endpoint::take_buffer).
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
constexpr int64_t kHandedBytes = 128 << 10;

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

TEST(HandedCalls, TwoRanksHandAllOfAnAllreduceOver) {
  testing::run_world(2, config_with(kHandedBytes), [](Member& m) {
    for (int64_t count : {300, 5'000, 30'000, 100'000, 400'000}) {
      const Counters before = m.comm.counters();
      for (int i = 0; i < 5; i++) allreduce(m, count);
      const Counters& after = m.comm.counters();
      uint64_t handed = after.bytes_sent_handed - before.bytes_sent_handed;
      // But what a rank has to send when the peer, which is a piece behind, has all buffers.
      EXPECT_GE(handed * 2, after.bytes_sent - before.bytes_sent) << count;
      EXPECT_GT(handed, 0u) << count;
    }
  });
}

TEST(HandedCalls, AreRightWhateverIsScaledAndByWhateverSchedule) {
  for (const char* algorithm : {"", "ring", "recursive_doubling", "direct", "halving_doubling"})
    for (Rank size : {2, 3, 4})
      testing::run_world(size, config_with(kHandedBytes, algorithm), [](Member& m) {
        for (int64_t count : {300, 5'000, 100'000, 700'000}) {
          allreduce(m, count);
          allreduce(m, count, 2);
          allreduce(m, count, 1, 0.5);
          allreduce(m, count, 4, 0.25);
        }
      });
}

// A root that only sends soon has no buffers; they come back with what it receives.
TEST(HandedCalls, AStreamTakesThemAndAnExchangeGoesOn) {
  testing::run_world(2, config_with(kHandedBytes), [](Member& m) {
    for (int turn = 0; turn < 5; turn++) {
      for (int i = 0; i < 20; i++) broadcast(m, 10'000);
      uint64_t before = m.comm.counters().bytes_sent_handed;
      for (int i = 0; i < 5; i++) broadcast(m, 10'000);
      EXPECT_EQ(m.comm.counters().bytes_sent_handed, before) << "none is left";
      for (int i = 0; i < 20; i++) allreduce(m, 10'000);
      if (m.rank == 1) {
        EXPECT_GT(m.comm.counters().bytes_sent_handed, before);
      }
    }
  });
}

TEST(HandedCalls, AreNoneWhereNoneAreWanted) {
  testing::run_world(2, config_with(0), [](Member& m) {
    for (int64_t count : {300, 5'000, 400'000}) allreduce(m, count);
    EXPECT_EQ(m.comm.counters().bytes_sent_handed, 0u);
  });
}

}  // namespace
}  // namespace ringcoll
