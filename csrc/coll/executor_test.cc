// Types and operations, scales, fused buffers, equality on all ranks, memory, and what is
// remembered from call to call.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "coll/world_testing.h"
#include "shm/peer_memory_testing.h"
#include "topology/costs.h"

namespace ringcoll {
namespace {

using testing::Bytes;
using testing::call_of;
using testing::Member;
using testing::run;

bool has_op(DataType dtype, ReduceOp op) {
  bool is_float =
      dtype == RC_FLOAT16 || dtype == RC_BFLOAT16 || dtype == RC_FLOAT32 || dtype == RC_FLOAT64;
  return !is_float || (op != RC_BIT_AND && op != RC_BIT_OR);
}

void every_type_and_op(Member& m) {
  constexpr int64_t kCount = 1009;
  for (int d = 0; d < RC_DTYPE_COUNT; d++)
    for (int o = 0; o < RC_OP_COUNT; o++) {
      auto dtype = static_cast<DataType>(d);
      auto op = static_cast<ReduceOp>(o);
      if (!has_op(dtype, op) || op == RC_AVERAGE) continue;
      Bytes input(kCount * size_of(dtype)), output(input.size());
      for (int64_t i = 0; i < kCount; i++)
        testing::put(dtype, input, i, testing::contribution(op, m.rank, i));
      rc_buffer buffer{input.data(), output.data(), kCount};
      run(m, call_of(RC_ALLREDUCE, dtype, op, {&buffer, 1}));
      for (int64_t i = 0; i < kCount; i++)
        ASSERT_EQ(testing::get(dtype, output, i), testing::combined(op, dtype, m.size, i))
            << name_of(dtype) << " " << name_of(op) << " element " << i << " of " << m.size;
    }
}

TEST(Executor, EveryTypeAndOp) {
  for (Rank size : {2, 3, 4})
    testing::run_world(size, testing::test_config("loopback"), every_type_and_op);
}

TEST(Executor, AverageAndScales) {
  testing::run_world(4, testing::test_config("loopback"), [](Member& m) {
    for (int64_t count : {1, 5, 100000}) {
      std::vector<float> in(count, 1.0f + m.rank), out(count);
      rc_buffer buffer{in.data(), out.data(), count};
      rc_call raw = call_of(RC_ALLREDUCE, RC_FLOAT32, RC_AVERAGE, {&buffer, 1});
      run(m, raw);
      EXPECT_EQ(out.front(), 2.5f);
      EXPECT_EQ(out.back(), 2.5f);
      raw.op = RC_SUM;
      raw.prescale = 0.5;
      raw.postscale = 8;
      run(m, raw);
      EXPECT_EQ(out.front(), 40.0f);
      EXPECT_EQ(out.back(), 40.0f);
      EXPECT_EQ(in.front(), 1.0f + m.rank) << "the input was written";
      raw.prescale = -0.0;
      run(m, raw);
      EXPECT_EQ(out.front(), 0.0f);
    }
  });
}

TEST(Executor, EveryReductionAverages) {
  testing::run_world(4, testing::test_config("loopback"), [](Member& m) {
    for (Collective collective : {RC_ALLREDUCE, RC_REDUCE, RC_REDUCE_SCATTER}) {
      std::vector<float> in(4, 1.0f + m.rank), out(4, -1);
      rc_buffer buffer{in.data(), out.data(), collective == RC_REDUCE_SCATTER ? 1 : 4};
      run(m, call_of(collective, RC_FLOAT32, RC_AVERAGE, {&buffer, 1}));
      float expected = collective == RC_REDUCE && m.rank > 0 ? -1.0f : 2.5f;
      EXPECT_EQ(std::ranges::count(std::span(out).first(buffer.count), expected), buffer.count)
          << name_of(collective) << " of rank " << m.rank;
    }
  });
}

// With a prescale a rank's own block goes through the arena to another place of the index space.
TEST(Executor, AlltoallScalesItsOwnBlock) {
  testing::run_world(3, testing::test_config("shm"), [](Member& m) {
    constexpr int64_t kCount = 40000;
    std::vector<float> in(3 * kCount, 1.0f + m.rank), out(3 * kCount);
    rc_buffer buffer{in.data(), out.data(), kCount};
    rc_call raw = call_of(RC_ALLTOALL, RC_FLOAT32, RC_SUM, {&buffer, 1});
    raw.prescale = 2;
    run(m, raw);
    for (int64_t i = 0; i < 3 * kCount; i++)
      ASSERT_EQ(out[i], 2.0f * (1 + i / kCount)) << "element " << i << " of rank " << m.rank;
  });
}

// What is empty has no memory.
TEST(Executor, FusesBuffersOfAnySize) {
  testing::run_world(3, testing::test_config("loopback"), [](Member& m) {
    std::vector<int64_t> counts = {1, 0, 17, 100000, 3, 64, 0, 4097};
    for (Collective collective : {RC_ALLREDUCE, RC_BROADCAST}) {
      std::vector<std::vector<float>> in, out;
      std::vector<rc_buffer> buffers;
      for (int64_t count : counts) {
        in.emplace_back(count, static_cast<float>(m.rank + buffers.size()));
        out.emplace_back(count);
        buffers.push_back({in.back().data(), out.back().data(), count});
      }
      run(m, call_of(collective, RC_FLOAT32, RC_SUM, buffers));
      for (size_t b = 0; b < counts.size(); b++)
        for (float value : out[b])
          ASSERT_EQ(value, collective == RC_BROADCAST ? b : 3.0f + 3 * b)
              << name_of(collective) << ", buffer " << b << " of rank " << m.rank;
    }
  });
}

std::vector<std::string> names_of(Collective collective) {
  std::vector<std::string> names;
  for (const ScheduleRow& row : schedules())
    if (row.collective == collective) names.emplace_back(row.name);
  return names;
}

// What each rank makes of `values(rank)` under every schedule, byte by byte.
template <typename T>
void expect_equal_on_all_ranks(DataType dtype, ReduceOp op,
                               const std::function<std::vector<T>(Rank)>& values) {
  for (const std::string& algorithm : names_of(RC_ALLREDUCE))
    for (Rank size : {2, 3, 5, 8}) {
      std::vector<std::vector<T>> results(size);
      testing::run_world(size, testing::test_config("loopback", algorithm), [&](Member& m) {
        std::vector<T> mine = values(m.rank);
        rc_buffer buffer{mine.data(), mine.data(), static_cast<int64_t>(mine.size())};
        run(m, call_of(RC_ALLREDUCE, dtype, op, {&buffer, 1}));
        results[m.rank] = mine;
      });
      for (Rank r = 1; r < size; r++)
        EXPECT_EQ(0,
                  std::memcmp(results[0].data(), results[r].data(), sizeof(T) * results[0].size()))
            << algorithm << " " << name_of(op) << " of " << name_of(dtype) << ", rank " << r
            << " of " << size;
    }
}

TEST(Executor, FloatsAreBitwiseEqualOnAllRanks) {
  expect_equal_on_all_ranks<float>(RC_FLOAT32, RC_SUM, [](Rank rank) {
    std::mt19937 random(rank);
    std::normal_distribution<float> normal;
    std::vector<float> values(50021);
    for (float& v : values) v = normal(random);
    return values;
  });
}

// Which of two NaNs is the result depends on the order of the operands.
TEST(Executor, NansAreBitwiseEqualOnAllRanks) {
  for (ReduceOp op : {RC_SUM, RC_PRODUCT, RC_MIN, RC_MAX}) {
    expect_equal_on_all_ranks<uint32_t>(RC_FLOAT32, op, [](Rank rank) {
      return std::vector<uint32_t>(4099, 0x7fc00001 + static_cast<uint32_t>(rank));
    });
    expect_equal_on_all_ranks<uint16_t>(RC_BFLOAT16, op, [](Rank rank) {
      return std::vector<uint16_t>(4099, static_cast<uint16_t>(0x7fc1 + rank));
    });
  }
}

TEST(Executor, UsesNoMoreThanTheArena) {
  Config config = testing::test_config("shm");
  config.arena_bytes = 1 << 20;
  testing::run_world(2, config, [](Member& m) {
    std::vector<int8_t> values(64 << 20, 1);
    rc_buffer buffer{values.data(), values.data(), static_cast<int64_t>(values.size())};
    run(m, call_of(RC_ALLREDUCE, RC_INT8, RC_SUM, {&buffer, 1}));
    EXPECT_EQ(values.front(), 2);
    EXPECT_EQ(values.back(), 2);
  });
}

// Beyond the caches other loops copy, scale and reduce.
void expect_large_floats(Member& m, Collective collective, bool in_place, double postscale) {
  std::vector<std::vector<float>> inputs, outputs;
  std::vector<rc_buffer> buffers;
  for (int64_t count : {2'500'001, 77, 1'300'021}) {  // no multiples of a page
    std::vector<float>& input = inputs.emplace_back(count);
    for (int64_t i = 0; i < count; i++) input[i] = static_cast<float>(i % 9973 + m.rank);
    outputs.emplace_back(in_place ? 0 : count);
    buffers.push_back({input.data(), in_place ? input.data() : outputs.back().data(), count});
  }
  rc_call call = call_of(collective, RC_FLOAT32, RC_SUM, buffers);
  call.postscale = postscale;
  run(m, call);
  if (collective == RC_REDUCE && m.rank != call.root) return;
  int64_t wrong = 0;
  bool sums = collective != RC_BROADCAST;
  for (const rc_buffer& buffer : buffers)
    for (int64_t i = 0; i < buffer.count; i++) {
      double value = static_cast<double>(i % 9973);
      if (sums) value = m.size * value + m.size * (m.size - 1) / 2;
      wrong += static_cast<const float*>(buffer.output)[i] != static_cast<float>(value * postscale);
    }
  EXPECT_EQ(wrong, 0) << name_of(collective) << " of " << m.size
                      << (in_place ? " in place, times " : " elsewhere, times ") << postscale;
}

TEST(Executor, LargeFloatsInPlaceAndElsewhere) {
  for (std::string transport : {"shm", "tcp"})
    for (Rank size : {2, 3})
      testing::run_world(size, testing::test_config(transport), [](Member& m) {
        for (Collective collective : {RC_ALLREDUCE, RC_BROADCAST, RC_REDUCE})
          for (bool in_place : {true, false})
            for (double postscale : {1.0, 0.5})
              expect_large_floats(m, collective, in_place, postscale);
      });
}

// Calls made one after another, small and large in turn, must not disturb one another's memory.
TEST(Executor, ManyCallsInARow) {
  for (std::string transport : {"shm", "tcp", "loopback"})
    testing::run_world(4, testing::test_config(transport), [](Member& m) {
      for (int round = 0; round < 200; round++) {
        int64_t count = round % 7 == 0 ? 30000 : 1 + round % 5;
        std::vector<int32_t> values(count, round + m.rank);
        rc_buffer buffer{values.data(), values.data(), count};
        run(m, call_of(RC_ALLREDUCE, RC_INT32, RC_SUM, {&buffer, 1}));
        ASSERT_EQ(values.front(), 4 * round + 6) << round;
        ASSERT_EQ(values.back(), 4 * round + 6) << round;
      }
    });
}

// A call like the one before is not worked out anew; its memory, place and factors are its own.
TEST(Executor, ARepeatedCallIsACallOfItsOwn) {
  for (const char* transport : {"shm", "tcp"})
    testing::run_world(2, testing::test_config(transport), [](Member& m) {
      for (int64_t count : {3, 50000, 700000}) {
        for (int turn = 0; turn < 12; turn++) {
          std::vector<float> in(count, static_cast<float>(turn + m.rank)), out(count, -1);
          bool in_place = turn % 4 == 3;
          rc_buffer buffer{in.data(), in_place ? in.data() : out.data(), count};
          rc_call raw = call_of(RC_ALLREDUCE, RC_FLOAT32, turn % 3 ? RC_SUM : RC_MAX, {&buffer, 1});
          raw.postscale = turn < 6 ? 1 : 2;
          run(m, raw);
          float expected = (turn % 3 ? 2.0f * turn + 1 : turn + 1.0f) * (turn < 6 ? 1 : 2);
          const auto& result = in_place ? in : out;
          ASSERT_EQ(result.front(), expected) << count << " turn " << turn;
          ASSERT_EQ(result.back(), expected) << count << " turn " << turn;
          ASSERT_TRUE(in_place || in.back() == static_cast<float>(turn + m.rank));
        }
      }
    });
}

// The root is far ahead, and its memory is its own again when its call has returned.
TEST(Executor, WhoIsLateReadsWhatWasSent) {
  for (const char* transport : {"shm", "tcp", "verbs", "loopback"})
    for (const char* algorithm : {"binomial", "chain"}) {
      Config config = testing::test_config(transport, algorithm);
      config.arena_bytes = 1 << 20;
      testing::run_world(3, config, [&](Member& m) {
        for (int32_t round = 0; round < 4; round++)
          for (int64_t count : {1 << 10, 1 << 14, 1 << 19}) {
            std::vector<int32_t> values(count, m.rank == 0 ? round : -1);
            rc_buffer buffer{values.data(), values.data(), count};
            if (m.rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(2 * m.rank));
            run(m, call_of(RC_BROADCAST, RC_INT32, RC_SUM, {&buffer, 1}));
            ASSERT_EQ(std::ranges::count(values, round), count)
                << transport << " " << algorithm << " rank " << m.rank << ", " << count;
            std::ranges::fill(values, -2);
          }
      });
    }
}

// Whoever has returned may do something else for long: nothing is left that only it can send on.
TEST(Executor, NothingIsStillToBeSentByWhoHasReturned) {
  for (const char* transport : {"shm", "tcp", "verbs"})
    for (double prescale : {1.0, 2.0}) {  // sent as it lies, and through the arena
      Config config = testing::test_config(transport, "chain");
      config.timeout_s = 5;
      config.arena_bytes = 64 << 20;
      std::atomic<bool> received{false};
      testing::run_world(2, config, [&](Member& m) {
        std::vector<int32_t> values(6 << 20, 1 - m.rank);
        rc_buffer buffer{values.data(), values.data(), std::ssize(values)};
        rc_call raw = call_of(RC_BROADCAST, RC_INT32, RC_SUM, {&buffer, 1});
        raw.prescale = prescale;
        if (m.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        run(m, raw);
        EXPECT_EQ(std::ranges::count(values, static_cast<int32_t>(prescale)), buffer.count);
        if (m.rank == 1) received = true;
        while (!received && !m.comm.poisoned()) std::this_thread::yield();
      });
    }
}

// Calls that are alike in all but one thing.
TEST(Executor, WhatIsRememberedOfOneCallIsNotTakenForAnother) {
  for (const char* transport : {"shm", "tcp"})
    testing::run_world(3, testing::test_config(transport), [](Member& m) {
      constexpr int64_t kCount = 3 << 18;  // of bytes one piece, of doubles several
      for (int turn = 0; turn < 2; turn++)
        for (DataType dtype : {RC_INT8, RC_FLOAT64})
          for (Rank root : {0, 2, 1}) {
            Bytes values(kCount * size_of(dtype));
            for (int64_t i = 0; i < kCount; i++) testing::put(dtype, values, i, m.rank + i % 5);
            rc_buffer buffer{values.data(), values.data(), kCount};
            rc_call raw = call_of(RC_BROADCAST, dtype, RC_SUM, {&buffer, 1});
            raw.root = root;
            // The root may do without an output.
            if (turn == 1 && m.rank == root) buffer.output = nullptr;
            run(m, raw);
            for (int64_t i = 0; i < kCount; i++)
              ASSERT_EQ(testing::get(dtype, values, i), root + i % 5)
                  << name_of(dtype) << " root " << root << " rank " << m.rank << ", element " << i;
          }
    });
}

// Plans that are not used any more make room, those of pieces in flight stay.
TEST(Executor, MoreDifferentCallsThanPlansAreKept) {
  constexpr int64_t kStretch = 512;
  Config config = testing::test_config("loopback");
  config.segment_bytes = 2 * kStretch * sizeof(int32_t);
  testing::run_world(2, config, [](Member& m) {
    for (int64_t a = 1; a < 35; a++)
      for (int64_t b = 1; b < 35; b++) {  // all first pieces are alike, all second ones differ
        std::vector<int64_t> counts = {kStretch + a, kStretch + b};
        std::vector<int32_t> in(counts[m.rank], m.rank), out(counts[0] + counts[1], -1);
        rc_buffer buffer{in.data(), out.data(), 0};
        rc_call raw = call_of(RC_ALLGATHER, RC_INT32, RC_SUM, {&buffer, 1});
        raw.counts = counts.data();
        run(m, raw);
        ASSERT_EQ(std::ranges::count(out, 0), counts[0]);
        ASSERT_EQ(std::ranges::count(out, 1), counts[1]);
      }
  });
}

// Over a network, a large tensor is sent as it lies and received where it is wanted: a ring copies
// nothing, scaled or not, in place or not. The results are those of the packed way.
TEST(Executor, NetworksCopyNothingOfALargeTensor) {
  for (Rank size : {2, 3, 4})
    testing::run_world(size, testing::test_config("tcp", "allreduce=ring"), [](Member& m) {
      constexpr int64_t kCount = 700001;  // several pieces, chunks of different lengths
      for (bool in_place : {false, true})
        for (auto op : {RC_SUM, RC_AVERAGE}) {
          std::vector<float> in(kCount), out(kCount);
          for (int64_t i = 0; i < kCount; i++) in[i] = static_cast<float>(i % 100 + m.rank);
          rc_buffer buffer{in.data(), in_place ? in.data() : out.data(), kCount};
          Counters before = m.comm.counters();
          run(m, call_of(RC_ALLREDUCE, RC_FLOAT32, op, {&buffer, 1}));
          const Counters& after = m.comm.counters();
          EXPECT_EQ(after.bytes_packed, before.bytes_packed);
          EXPECT_EQ(after.bytes_unpacked, before.bytes_unpacked);
          EXPECT_GT(after.bytes_sent_zero_copy, before.bytes_sent_zero_copy);
          float scale = op == RC_AVERAGE ? 1.0f / static_cast<float>(m.size) : 1.0f;
          auto ranks = static_cast<float>(m.size * (m.size - 1) / 2);
          const float* result = static_cast<const float*>(buffer.output);
          for (int64_t i = 0; i < kCount; i++) {
            float sum = static_cast<float>(m.size) * static_cast<float>(i % 100) + ranks;
            ASSERT_FLOAT_EQ(result[i], sum * scale) << i << " of rank " << m.rank;
          }
        }
    });
}

// Over RDMA the same, once tensors have come back and are registered; and memory that was freed and
// is there again is another memory.
TEST(Executor, RdmaCopiesNothingOfATensorThatComesBack) {
  testing::run_world(2, testing::test_config("verbs", "allreduce=ring"), [](Member& m) {
    constexpr int64_t kCount = 700001;
    std::byte* data = nullptr;
    auto map = [&] {
      void* at = ::mmap(data, kCount * sizeof(float), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | (data ? MAP_FIXED : 0), -1, 0);
      ASSERT_NE(at, MAP_FAILED);
      data = static_cast<std::byte*>(at);
    };
    uint64_t copied_in_the_end = 1;
    for (int round = 0; round < 3; round++) {
      map();
      auto* values = reinterpret_cast<float*>(data);
      for (int call = 0; call < 3; call++) {
        for (int64_t i = 0; i < kCount; i++)
          values[i] = static_cast<float>(i % 100 + m.rank + call);
        rc_buffer buffer{values, values, kCount};
        Counters before = m.comm.counters();
        run(m, call_of(RC_ALLREDUCE, RC_FLOAT32, RC_AVERAGE, {&buffer, 1}));
        const Counters& after = m.comm.counters();
        copied_in_the_end =
            after.bytes_packed - before.bytes_packed + after.bytes_unpacked - before.bytes_unpacked;
        EXPECT_TRUE(call > 0 || copied_in_the_end > 0) << "registered at once";
        for (int64_t i = 0; i < kCount; i++)
          ASSERT_EQ(values[i], static_cast<float>(i % 100 + call) + 0.5f) << round << " " << call;
      }
      EXPECT_EQ(copied_in_the_end, 0u) << "round " << round;
    }
    ::munmap(data, kCount * sizeof(float));
  });
}

/// What links of a host cost on a quiet machine, for choices that are to be the same on a busy one.
class UsualCosts {
 public:
  UsualCosts() : file_(::testing::TempDir() + fmt::format("usual_costs.{}", getpid())) {
    std::ofstream(file_) << costs_json(std::vector<LevelCost>{{"host", 1, 8000, 16000}});
  }
  ~UsualCosts() { unlink(file_.c_str()); }
  UsualCosts(const UsualCosts&) = delete;
  UsualCosts& operator=(const UsualCosts&) = delete;
  Config in(Config config) const {
    config.costs = file_;
    return config;
  }

 private:
  const std::string file_;
};

// Once peers have said that they can read it. What is combined goes through the arena.
TEST(Executor, WithinAHostWhatIsOnlyCopiedIsSentAsItLies) {
  UsualCosts costs;
  for (Rank size : {2, 3})
    testing::run_world(size, costs.in(testing::test_config("shm")), [](Member& m) {
      constexpr int64_t kCount = 100'001;  // several pieces
      std::vector<float> in(m.size * kCount, static_cast<float>(m.rank)), out(m.size * kCount);
      rc_buffer buffer{in.data(), out.data(), kCount};
      for (auto collective : {RC_ALLGATHER, RC_ALLTOALL, RC_BROADCAST, RC_ALLREDUCE}) {
        rc_call call = call_of(collective, RC_FLOAT32, RC_SUM, {&buffer, 1});
        run(m, call);
        std::ranges::fill(out, -1.0f);
        Counters before = m.comm.counters();
        run(m, call);
        const Counters& after = m.comm.counters();
        bool as_it_lies = after.bytes_sent_zero_copy > before.bytes_sent_zero_copy;
        if (m.rank == 0) {
          EXPECT_EQ(as_it_lies, collective != RC_ALLREDUCE) << collective;
        }
        if (collective != RC_ALLREDUCE) {
          EXPECT_EQ(after.bytes_packed, before.bytes_packed) << collective;
        }
        bool chunks = collective == RC_ALLGATHER || collective == RC_ALLTOALL;
        float of_all =
            collective == RC_ALLREDUCE ? static_cast<float>(m.size * (m.size - 1) / 2) : 0;
        for (int64_t i = 0; i < (chunks ? m.size * kCount : kCount); i++)
          ASSERT_EQ(out[i], chunks ? static_cast<float>(i / kCount) : of_all) << collective << i;
      }
    });
}

// Links of a host copy what is sent, if it is so short.
class AFewBytesWithinAHost : public ::testing::TestWithParam<Rank> {
 protected:
  static constexpr int64_t kMost = 1024;
  struct Case {
    rc_collective collective;
    int64_t bytes;  // of a vector, or of a chunk
    bool packed;
  };
  static void run_all(std::vector<Case> cases) {
    UsualCosts costs;
    Config config = costs.in(testing::test_config("shm"));
    config.handed_bytes = 0;
    testing::run_world(GetParam(), config, [&](Member& m) {
      ASSERT_EQ(m.comm.config().inline_bytes, kMost);
      for (const Case& one : cases) {
        auto elements = one.bytes / 4;
        std::vector<float> in(m.size * elements, 1.0f), out(m.size * elements);
        rc_buffer buffer{in.data(), out.data(), elements};
        uint64_t before = m.comm.counters().bytes_packed;
        run(m, call_of(one.collective, RC_FLOAT32, RC_SUM, {&buffer, 1}));
        bool sends = m.rank == 0 || one.collective != RC_BROADCAST;
        EXPECT_EQ(m.comm.counters().bytes_packed > before, sends && one.packed)
            << one.collective << ", " << one.bytes << " bytes, rank " << m.rank;
      }
      EXPECT_EQ(m.comm.counters().bytes_sent_zero_copy, 0u);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(, AFewBytesWithinAHost, ::testing::Values(2, 3, 4));

TEST_P(AFewBytesWithinAHost, AreNotPacked) {
  // By some schedules what all ranks have together goes in a message, by others a rank's share.
  int64_t few = kMost / GetParam() / 4 * 4, many = (kMost + 4) * GetParam();
  run_all({{RC_BROADCAST, kMost, false}, {RC_BROADCAST, many, true}});
  for (rc_collective collective : {RC_ALLGATHER, RC_REDUCE_SCATTER, RC_ALLTOALL})
    run_all({{collective, few, false}, {collective, many, true}});
  if (GetParam() == 2)  // more send what they have combined, and read the input meanwhile
    run_all({{RC_ALLREDUCE, kMost, false}, {RC_ALLREDUCE, many, true}});
}

// The kernel copies what is lent, which costs a microsecond. With a root, who packs and who unpacks
// work at the same time.
TEST(Executor, WithinAHostWhatIsShortIsPacked) {
  struct Case {
    rc_collective collective;
    int64_t kib;
    bool lent;
  };
  UsualCosts costs;
  testing::run_world(2, costs.in(testing::test_config("shm")), [](Member& m) {
    for (Case one : {Case{RC_ALLGATHER, 12, false}, Case{RC_ALLGATHER, 20, true},
                     Case{RC_BROADCAST, 48, false}, Case{RC_BROADCAST, 68, true}}) {
      int64_t count = one.kib * 256;
      std::vector<float> in(count), out(m.size * count);
      rc_buffer buffer{in.data(), out.data(), count};
      rc_call call = call_of(one.collective, RC_FLOAT32, RC_SUM, {&buffer, 1});
      run(m, call);  // peers say whether they can read it
      uint64_t before = m.comm.counters().bytes_sent_zero_copy;
      run(m, call);
      bool sends = m.rank == 0 || one.collective == RC_ALLGATHER;
      EXPECT_EQ(m.comm.counters().bytes_sent_zero_copy > before, sends && one.lent)
          << one.collective << ", " << one.kib << " KiB, rank " << m.rank;
    }
  });
}

TEST(Executor, NothingIsLentToWhoMayNotReadIt) {
  std::thread([] {
    testing::forbid_reading();
    testing::run_world(2, testing::test_config("shm"), [](Member& m) {
      constexpr int64_t kCount = 100'001;
      std::vector<float> in(2 * kCount, static_cast<float>(m.rank)), out(2 * kCount);
      rc_buffer buffer{in.data(), out.data(), kCount};
      for (int i = 0; i < 3; i++) run(m, call_of(RC_ALLTOALL, RC_FLOAT32, RC_SUM, {&buffer, 1}));
      EXPECT_EQ(m.comm.counters().bytes_sent_zero_copy, 0u);
      for (int64_t i = 0; i < 2 * kCount; i++)
        ASSERT_EQ(out[i], static_cast<float>(i / kCount)) << i;
    });
  }).join();
}

// The exchange would overwrite what has not been sent yet.
TEST(Executor, AlltoallInPlaceIsPacked) {
  testing::run_world(3, testing::test_config("tcp"), [](Member& m) {
    constexpr int64_t kCount = 200000;
    std::vector<float> data(3 * kCount);
    for (size_t i = 0; i < data.size(); i++)
      data[i] = static_cast<float>(m.rank * 3 + static_cast<Rank>(i / kCount));
    rc_buffer buffer{data.data(), data.data(), kCount};
    run(m, call_of(RC_ALLTOALL, RC_FLOAT32, RC_SUM, {&buffer, 1}));
    EXPECT_EQ(m.comm.counters().bytes_sent_zero_copy, 0u);
    for (size_t i = 0; i < data.size(); i++)
      ASSERT_EQ(data[i], static_cast<float>(static_cast<Rank>(i / kCount) * 3 + m.rank)) << i;
  });
}

TEST(Select, RefusesAnUnknownAlgorithmWithTheKnownOnes) {
  EXPECT_NO_THROW(check_algorithm(""));
  EXPECT_NO_THROW(check_algorithm("ring"));
  EXPECT_NO_THROW(check_algorithm("allreduce=ring,broadcast=binomial"));
  for (const char* bad : {"rnig", "allreduce=binomial", "all=ring", ","}) {
    try {
      check_algorithm(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(bad), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace ringcoll
