#include "delta/checksum.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "delta/xxh3.h"

namespace ringcoll {
namespace {

constexpr size_t kChunk = kChecksumChunk;
constexpr auto kLengths =
    std::to_array<size_t>({0, 1, 8, 17, 240, 241, 4095, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk,
                           3 * kChunk + 5, 40 * kChunk, 40 * kChunk + 3});

std::vector<std::byte> random_bytes(size_t count, uint32_t seed = 7) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// The definition, by libxxhash alone.
uint64_t defined(const std::byte* data, size_t bytes) {
  std::vector<uint64_t> sums;
  for (size_t at = 0; at < bytes; at += kChunk)
    sums.push_back(XXH3_64bits(data + at, std::min(kChunk, bytes - at)));
  return XXH3_64bits(sums.data(), sums.size() * sizeof(uint64_t));
}

TEST(Checksum, IsThatOfTheChunksSums) {
  for (size_t offset : {0, 1, 3, 32}) {
    std::vector<std::byte> data = random_bytes(offset + kLengths.back());
    for (size_t bytes : kLengths)
      EXPECT_EQ(checksum(data.data() + offset, bytes), defined(data.data() + offset, bytes))
          << bytes << " bytes, offset " << offset;
  }
}

TEST(Checksum, NeverChanges) {
  // Sums that were sent or stored stay valid. The package xxhash of Python gives the same numbers.
  EXPECT_EQ(checksum(nullptr, 0), 0x2d06'8005'38d3'94c2);
  const std::string text = "ringcoll";
  EXPECT_EQ(checksum(text.data(), text.size()), 0xd390'5d36'598a'0d3f);
  std::vector<std::byte> data(2 * kChunk + 5);
  for (size_t i = 0; i < data.size(); i++) data[i] = static_cast<std::byte>(i * 7 + i / 251);
  EXPECT_EQ(checksum(data.data(), data.size()), 0xaa96'cb07'c6d1'3d60);
}

TEST(Checksum, FindsEveryFlippedBitAndSwappedChunks) {
  std::vector<std::byte> data = random_bytes(2 * kChunk + 9);
  const uint64_t sum = checksum(data.data(), data.size());
  for (size_t at : {size_t{0}, size_t{7}, kChunk - 1, kChunk, 2 * kChunk, 2 * kChunk + 8})
    for (int bit = 0; bit < 8; bit++) {
      data[at] ^= static_cast<std::byte>(1 << bit);
      EXPECT_NE(checksum(data.data(), data.size()), sum);
      data[at] ^= static_cast<std::byte>(1 << bit);
    }
  EXPECT_EQ(checksum(data.data(), data.size()), sum);
  std::rotate(data.begin(), data.begin() + kChunk, data.begin() + 2 * kChunk);
  EXPECT_NE(checksum(data.data(), data.size()), sum);
}

TEST(Checksum, OfACopyIsThatOfItsSource) {
  constexpr std::byte kBeside{0xee};
  constexpr size_t kRoom = 64;
  for (size_t from_offset : {0, 5})
    for (size_t to_offset : {0, 1, 16, 33}) {
      std::vector<std::byte> from = random_bytes(from_offset + kLengths.back());
      std::vector<std::byte> to(to_offset + kLengths.back() + kRoom);
      for (size_t bytes : kLengths) {
        std::ranges::fill(to, kBeside);
        const std::byte* in = from.data() + from_offset;
        EXPECT_EQ(copy_checksum(to.data() + to_offset, in, bytes), checksum(in, bytes));
        auto begin = to.begin() + static_cast<ptrdiff_t>(to_offset);
        auto end = begin + static_cast<ptrdiff_t>(bytes);
        EXPECT_TRUE(std::equal(begin, end, in));
        EXPECT_TRUE(std::all_of(to.begin(), begin, [](auto byte) { return byte == kBeside; }));
        EXPECT_TRUE(std::all_of(end, to.end(), [](auto byte) { return byte == kBeside; }));
      }
    }
}

TEST(Checksum, OfACopyOntoItselfLeavesItAsItIs) {
  std::vector<std::byte> data = random_bytes(kLengths.back());
  const std::vector<std::byte> before = data;
  EXPECT_EQ(copy_checksum(data.data(), data.data(), data.size()),
            checksum(before.data(), before.size()));
  EXPECT_EQ(data, before);
}

TEST(Checksum, IsTheSameForEveryInstructionSet) {
  std::vector<Xxh3> compiled;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) compiled.push_back(xxh3_avx2);
#endif
  const std::vector<std::byte> data = random_bytes(5000);
  for (Xxh3 sum_of : compiled)
    for (size_t bytes = 0; bytes <= 4000; bytes++) {
      const std::byte* begin = data.data() + bytes % 5;
      ASSERT_EQ(sum_of(begin, bytes), XXH3_64bits(begin, bytes)) << bytes;
    }
}

}  // namespace
}  // namespace ringcoll
