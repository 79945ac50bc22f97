// A queue pair that breaks in the middle of a call, on the software device and on real ones.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "coll/world_testing.h"
#include "verbs/breaker_testing.h"

namespace ringcoll {
namespace {

using testing::Member;

constexpr Rank kSize = 3;
constexpr int64_t kCount = 1 << 19;

// Sums ones until that fails, and tells how often it went well.
void reduce_for_ever(Member& m, std::atomic<int>* calls) {
  std::vector<float> ones(kCount, 1), sums(kCount);
  rc_buffer buffer{ones.data(), sums.data(), kCount};
  for (;;) {
    m.executor.run({.collective = RC_ALLREDUCE,
                    .dtype = RC_FLOAT32,
                    .op = RC_SUM,
                    .buffers = std::span(&buffer, 1)});
    for (float sum : sums) ASSERT_EQ(sum, kSize);
    (*calls)++;
  }
}

TEST(VerbsFaults, AQueuePairInTheErrorStateIsRaisedByAllRanks) {
  const TransportRow& verbs = *find_transport("verbs");
  Config config = testing::test_config("verbs", "ring");
  if (Probe probe = verbs.probe(config); !probe.usable) GTEST_SKIP() << probe.detail;
  verbs::QueuePairBreaker breaker;
  std::atomic<int> calls{0};
  std::atomic<bool> over{false};
  std::thread breaking([&] {
    while (calls < 2 * kSize && !over) std::this_thread::yield();
    EXPECT_TRUE(over || breaker.break_oldest());
  });
  auto errors = testing::run_ranks(kSize, config, [&](Member& m) { reduce_for_ever(m, &calls); });
  over = true;
  breaking.join();
  EXPECT_GE(calls, 2 * kSize);
  for (Rank rank = 0; rank < kSize; rank++) {
    ASSERT_TRUE(errors[rank]) << rank;
    EXPECT_EQ(errors[rank]->code(), Code::kTransport) << errors[rank]->what();
    EXPECT_STREQ(errors[rank]->what(), errors[0]->what()) << "all raise the same cause";
  }
  // Status, pair of ranks, device and GID, and what to look for.
  std::string text = errors[0]->what();
  for (const char* part : {"queue pair", "rank ", " -> ", ":1, gid ", "error state"})
    EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
}

}  // namespace
}  // namespace ringcoll
