// An exchange over an allgather of the caller's.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "bootstrap/exchange.h"
#include "store/store_testing.h"

namespace ringcoll {
namespace {

using testing::soon;

/// MPI_Allgather among threads.
class ThreadGather {
 public:
  explicit ThreadGather(Rank size) : size_(size), barrier_(size) {}
  GatherFunction of(Rank rank) {
    return [this, rank](const void* mine, size_t bytes, void* all) {
      if (rank == 0) buffer_.resize(bytes * size_);
      barrier_.arrive_and_wait();
      std::memcpy(buffer_.data() + bytes * rank, mine, bytes);
      barrier_.arrive_and_wait();
      std::memcpy(all, buffer_.data(), buffer_.size());
      barrier_.arrive_and_wait();
      return true;
    };
  }

 private:
  Rank size_;
  std::vector<char> buffer_;
  std::barrier<> barrier_;
};

TEST(FunctionExchange, GathersBlobsOfAnyLength) {
  constexpr Rank kSize = 3;
  ThreadGather gather(kSize);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kSize; rank++)
    threads.emplace_back([&, rank] {
      auto exchange = make_function_exchange(gather.of(rank), rank, kSize);
      auto blobs =
          exchange->all_gather(std::string(rank * 5, static_cast<char>('a' + rank)), soon());
      EXPECT_EQ(blobs, (std::vector<std::string>{"", "bbbbb", "cccccccccc"}));
      EXPECT_EQ(exchange->all_gather("", soon()), std::vector<std::string>(kSize));
    });
  for (auto& thread : threads) thread.join();
}

// Every rank has room for what all others gather: little, whatever one of them says.
TEST(FunctionExchange, ALongBlobOfOneRankTakesNoMemoryForTheOthers) {
  constexpr Rank kSize = 3;
  const size_t lengths[kSize] = {(1 << 20) + 7, 3, 100'000};
  std::vector<std::string> wanted;
  for (Rank rank = 0; rank < kSize; rank++) {
    wanted.emplace_back();
    for (size_t i = 0; i < lengths[rank]; i++) wanted[rank] += static_cast<char>(i * 7 + i / 999);
  }
  ThreadGather gather(kSize);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kSize; rank++)
    threads.emplace_back([&, rank] {
      size_t most = 0;
      auto counted = [&, inner = gather.of(rank)](const void* mine, size_t bytes, void* all) {
        most = std::max(most, bytes);
        return inner(mine, bytes, all);
      };
      auto exchange = make_function_exchange(counted, rank, kSize);
      EXPECT_EQ(exchange->all_gather(wanted[rank], soon()), wanted);
      EXPECT_LE(most, size_t{64} << 10);
    });
  for (auto& thread : threads) thread.join();
}

TEST(FunctionExchange, AFunctionThatFailsOrDoesNotGather) {
  auto failing = make_function_exchange([](const void*, size_t, void*) { return false; }, 0, 2);
  EXPECT_THROW(failing->all_gather("x", soon()), Error);
  auto idle = make_function_exchange([](const void*, size_t, void*) { return true; }, 1, 2);
  EXPECT_THROW(idle->all_gather("x", soon()), Error);
  auto wild = make_function_exchange(
      [](const void* mine, size_t bytes, void* all) {
        std::memset(all, 0xff, 2 * bytes);
        std::memcpy(all, mine, bytes);
        return true;
      },
      0, 2);
  EXPECT_THROW(wild->all_gather("x", soon()), Error);
}

}  // namespace
}  // namespace ringcoll
