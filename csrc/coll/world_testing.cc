#include "coll/world_testing.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

#include "bootstrap/exchange.h"
#include "store/store.h"
#include "transport/knobs.h"

namespace ringcoll::testing {
namespace {

// Only whole numbers up to 256 are tested, which every bfloat16 and binary16 holds exactly.
uint16_t to_half(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  double mantissa = std::frexp(std::abs(value), &exponent) * 2 - 1;
  return static_cast<uint16_t>((value < 0) << 15 | (exponent - 1 + 15) << 10 |
                               std::lround(mantissa * 1024));
}

double from_half(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double value = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return bits >> 15 ? -value : value;
}

template <typename T>
void store(Bytes& bytes, int64_t i, T value) {
  std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
}
template <typename T>
double load(const Bytes& bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

double bit_op(ReduceOp op, double a, double b) {
  auto x = static_cast<int64_t>(a), y = static_cast<int64_t>(b);
  return static_cast<double>(op == RC_BIT_AND ? x & y : x | y);
}

}  // namespace

Config test_config(const std::string& transport, const std::string& algorithm) {
  Config config = read_config([](const char*) -> const char* { return nullptr; });
  config.transport = transport;
  config.algorithm = algorithm;
  config.interface = "lo";
  config.timeout_s = 60;
  config.arena_bytes = 4 << 20;
  return config;
}

std::vector<std::optional<Error>> run_ranks(Rank size, const Config& config,
                                            const std::function<void(Member&)>& body,
                                            const HostOf& host_of) {
  static std::atomic<int> worlds{0};
  std::string url = "local://test" + std::to_string(worlds++);
  std::vector<std::optional<Error>> errors(size);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; rank++) {
    threads.emplace_back([&, rank] {
      try {
        Deadline deadline(seconds(config.timeout_s));
        auto exchange =
            make_store_exchange(open_store(url, "", rank, size, deadline), "w", rank, size);
        Config own = config;
        if (host_of) own.hostid = host_of(rank);
        Communicator comm(own, "test", *exchange);
        Executor executor(comm);
        Member member{comm, executor, rank, size};
        body(member);
      } catch (const Error& error) {
        errors[rank] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void run_world(Rank size, const Config& config, const std::function<void(Member&)>& body,
               const HostOf& host_of) {
  auto errors = run_ranks(size, config, body, host_of);
  for (Rank rank = 0; rank < size; rank++)
    EXPECT_FALSE(errors[rank]) << "rank " << rank << " of " << size << ": " << errors[rank]->what();
}

rc_call call_of(Collective collective, DataType dtype, ReduceOp op, std::span<rc_buffer> buffers) {
  rc_call raw{};
  raw.struct_size = sizeof raw;
  raw.collective = collective;
  raw.dtype = dtype;
  raw.op = op;
  raw.buffers = buffers.data();
  raw.buffer_count = static_cast<int64_t>(buffers.size());
  return raw;
}

void run(Member& m, const rc_call& raw) { m.executor.run(check_call(raw, m.rank, m.size)); }

void put(DataType dtype, Bytes& bytes, int64_t i, double v) {
  switch (dtype) {
    case RC_UINT8:
    case RC_BOOL:
      return store(bytes, i, static_cast<uint8_t>(v));
    case RC_INT8:
      return store(bytes, i, static_cast<int8_t>(v));
    case RC_UINT16:
      return store(bytes, i, static_cast<uint16_t>(v));
    case RC_INT16:
      return store(bytes, i, static_cast<int16_t>(v));
    case RC_UINT32:
      return store(bytes, i, static_cast<uint32_t>(v));
    case RC_INT32:
      return store(bytes, i, static_cast<int32_t>(v));
    case RC_UINT64:
      return store(bytes, i, static_cast<uint64_t>(v));
    case RC_INT64:
      return store(bytes, i, static_cast<int64_t>(v));
    case RC_FLOAT16:
      return store(bytes, i, to_half(v));
    case RC_BFLOAT16:
      return store(bytes, i,
                   static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(v)) >> 16));
    case RC_FLOAT32:
      return store(bytes, i, static_cast<float>(v));
    case RC_FLOAT64:
      return store(bytes, i, v);
  }
}

double get(DataType dtype, const Bytes& bytes, int64_t i) {
  switch (dtype) {
    case RC_UINT8:
    case RC_BOOL:
      return load<uint8_t>(bytes, i);
    case RC_INT8:
      return load<int8_t>(bytes, i);
    case RC_UINT16:
      return load<uint16_t>(bytes, i);
    case RC_INT16:
      return load<int16_t>(bytes, i);
    case RC_UINT32:
      return load<uint32_t>(bytes, i);
    case RC_INT32:
      return load<int32_t>(bytes, i);
    case RC_UINT64:
      return load<uint64_t>(bytes, i);
    case RC_INT64:
      return load<int64_t>(bytes, i);
    case RC_FLOAT16:
      return from_half(static_cast<uint16_t>(load<uint16_t>(bytes, i)));
    case RC_BFLOAT16:
      return std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(bytes, i)) << 16);
    case RC_FLOAT32:
      return load<float>(bytes, i);
    case RC_FLOAT64:
      return load<double>(bytes, i);
  }
  return NAN;
}

double contribution(ReduceOp op, Rank rank, int64_t i) {
  if (op == RC_PRODUCT) return (rank * 5 + i) % 7 == 0 ? 2 : 1;
  return static_cast<double>((rank + 1) * (i % 7 + 1) % 5);
}

double combined(ReduceOp op, DataType dtype, Rank size, int64_t i) {
  auto one = [&](Rank rank) {
    double v = contribution(op, rank, i);
    return dtype == RC_BOOL ? static_cast<double>(v != 0) : v;
  };
  double result = one(0);
  for (Rank rank = 1; rank < size; rank++) {
    double next = one(rank);
    if (op == RC_SUM || op == RC_AVERAGE) result += next;
    if (op == RC_PRODUCT) result *= next;
    if (op == RC_MIN) result = std::min(result, next);
    if (op == RC_MAX) result = std::max(result, next);
    if (op == RC_BIT_AND || op == RC_BIT_OR) result = bit_op(op, result, next);
  }
  if (dtype == RC_BOOL && op != RC_MIN && op != RC_BIT_AND && op != RC_PRODUCT) return result != 0;
  return result;
}

}  // namespace ringcoll::testing
