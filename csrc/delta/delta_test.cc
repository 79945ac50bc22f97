#include "delta/delta.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "base/error_testing.h"
#include "delta/checksum.h"

namespace ringcoll {
namespace {

using testing::error_of;
using Bytes = std::vector<std::byte>;

constexpr std::array<size_t, 4> kWidths = {1, 2, 4, 8};
constexpr size_t kBlock = 65536;
constexpr size_t kHeader = 24;

Bytes random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// `before` with each element changed with this probability.
Bytes changed(const Bytes& before, size_t width, double density, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::bernoulli_distribution changes(density);
  Bytes now = before;
  for (size_t at = 0; at < now.size(); at += width)
    if (changes(random)) now[at + random() % width] ^= std::byte{0x40};
  return now;
}

size_t count_differences(const Bytes& a, const Bytes& b, size_t width) {
  size_t count = 0;
  for (size_t at = 0; at < a.size(); at += width)
    count += std::memcmp(a.data() + at, b.data() + at, width) != 0;
  return count;
}

/// The delta, which is as long with exactly as much room as it needs, and does not fit with less.
Bytes make(const Bytes& before, const Bytes& now, size_t width) {
  Bytes delta(most_delta_bytes(now.size(), width));
  auto length =
      make_delta(before.data(), now.data(), now.size(), width, delta.data(), delta.size());
  EXPECT_TRUE(length.has_value());
  delta.resize(length.value_or(0));
  Bytes exact(delta.size());
  EXPECT_EQ(make_delta(before.data(), now.data(), now.size(), width, exact.data(), exact.size()),
            length);
  EXPECT_EQ(exact, delta);
  return delta;
}

Bytes applied(Bytes tensor, const Bytes& delta) {
  apply_delta(tensor.data(), tensor.size(), delta.data(), delta.size());
  return tensor;
}

/// The delta with the checksum that belongs to its other bytes, as an attacker would send it.
Bytes sealed(Bytes delta) {
  uint64_t sum = checksum(delta.data() + sizeof(uint64_t), delta.size() - sizeof(uint64_t));
  std::memcpy(delta.data(), &sum, sizeof sum);
  return delta;
}

/// The message of the error with which the delta is refused. The tensor must be unchanged, and so
/// must the bytes beside it.
std::string refusal(const Bytes& tensor, const Bytes& delta) {
  constexpr size_t kBeside = 64;
  Bytes room(tensor.size() + 2 * kBeside, std::byte{0xee});
  std::ranges::copy(tensor, room.begin() + kBeside);
  const Bytes before = room;
  Error error = error_of(
      [&] { apply_delta(room.data() + kBeside, tensor.size(), delta.data(), delta.size()); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(room, before);
  return error.what();
}

TEST(Delta, AppliedToTheOldVersionGivesTheNew) {
  uint64_t seed = 0;
  for (size_t width : kWidths)
    for (size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{63}, size_t{64}, size_t{65},
                         size_t{1000}, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock + 77})
      for (double density : {0.0, 0.001, 0.01, 0.2, 0.45, 0.55, 0.9, 1.0}) {
        SCOPED_TRACE(fmt::format("{} elements of {} bytes, density {}", count, width, density));
        const Bytes before = random_bytes(count * width, seed++);
        const Bytes now = changed(before, width, density, seed);
        const Bytes delta = make(before, now, width);
        ASSERT_EQ(applied(before, delta), now);
        EXPECT_EQ(changed_elements(before.data(), now.data(), now.size(), width),
                  count_differences(before, now, width));
      }
}

TEST(Delta, IsMadeAndAppliedAtEveryAddress) {
  constexpr size_t kCount = kBlock + 100;
  for (size_t width : kWidths)
    for (size_t offset : {1, 2, 3, 5}) {
      const Bytes before = random_bytes(kCount * width, 1);
      const Bytes now = changed(before, width, 0.02, 2);
      Bytes old_room(offset + before.size()), new_room(2 * offset + now.size());
      std::ranges::copy(before, old_room.begin() + static_cast<ptrdiff_t>(offset));
      std::ranges::copy(now, new_room.begin() + static_cast<ptrdiff_t>(2 * offset));
      Bytes delta(offset + most_delta_bytes(now.size(), width));
      auto length = make_delta(old_room.data() + offset, new_room.data() + 2 * offset, now.size(),
                               width, delta.data() + offset, delta.size() - offset);
      ASSERT_TRUE(length.has_value());
      apply_delta(old_room.data() + offset, now.size(), delta.data() + offset, *length);
      EXPECT_TRUE(std::equal(now.begin(), now.end(), old_room.data() + offset));
    }
}

TEST(Delta, IsBitForBit) {
  const auto nan = [](uint32_t payload) { return std::bit_cast<float>(0x7fc0'0000 | payload); };
  const std::array<float, 5> before = {0.0F, -0.0F, nan(1), nan(1), 1.0F};
  const std::array<float, 5> now = {-0.0F, -0.0F, nan(1), nan(2), 1.0F};
  EXPECT_EQ(changed_elements(before.data(), now.data(), sizeof now, sizeof(float)), 2);
  Bytes delta(1000);
  auto length =
      make_delta(before.data(), now.data(), sizeof now, sizeof(float), delta.data(), 1000);
  ASSERT_EQ(length, kHeader + 4 + 2 * (2 + sizeof(float)));
  auto tensor = before;
  apply_delta(tensor.data(), sizeof tensor, delta.data(), *length);
  using Bits = std::array<uint32_t, 5>;
  EXPECT_EQ(std::bit_cast<Bits>(tensor), std::bit_cast<Bits>(now));
}

TEST(Delta, HasIndicesAndValuesOrWholeBlocksWhicheverIsShorter) {
  for (size_t width : kWidths) {
    const Bytes before(3 * kBlock * width);
    Bytes now = before;
    // One element of the first block, all of the second, none of the third.
    now[5 * width] = std::byte{1};
    std::fill_n(now.begin() + static_cast<ptrdiff_t>(kBlock * width), kBlock * width, std::byte{1});
    EXPECT_EQ(make(before, now, width).size(), kHeader + 3 * 4 + 2 + width + kBlock * width);
    const Bytes all = changed(before, width, 1, 1);
    EXPECT_EQ(make(before, all, width).size(), most_delta_bytes(all.size(), width));
    EXPECT_EQ(most_delta_bytes(all.size(), width), kHeader + 3 * 4 + all.size());
  }
}

TEST(Delta, TakesTheShorterFormToTheElement) {
  for (size_t width : kWidths) {
    constexpr size_t kCount = 600;
    const Bytes before(kCount * width);
    const size_t most = kCount * width / (2 + width);
    for (size_t differ : {most, most + 1}) {
      Bytes now = before;
      for (size_t i = 0; i < differ; i++) now[i * width] = std::byte{1};
      const Bytes delta = make(before, now, width);
      EXPECT_EQ(delta.size(), kHeader + 4 + (differ == most ? differ * (2 + width) : now.size()));
      EXPECT_EQ(applied(before, delta), now);
    }
  }
}

TEST(Delta, ThatDoesNotFitIsNotWrittenBeyondItsRoom) {
  const Bytes before = random_bytes(3000, 1);
  const Bytes now = changed(before, 2, 0.05, 2);
  const Bytes delta = make(before, now, 2);
  for (size_t capacity = 0; capacity < delta.size(); capacity++) {
    Bytes out(delta.size(), std::byte{0xee});
    EXPECT_FALSE(make_delta(before.data(), now.data(), now.size(), 2, out.data(), capacity));
    EXPECT_TRUE(std::all_of(out.begin() + static_cast<ptrdiff_t>(capacity), out.end(),
                            [](std::byte byte) { return byte == std::byte{0xee}; }));
  }
}

TEST(Delta, OfOnePercentOfBfloat16IsTwoPercent) {
  const Bytes before = random_bytes(8 << 20, 1);
  const Bytes now = changed(before, 2, 0.01, 2);
  EXPECT_LT(make(before, now, 2).size(), now.size() * 0.021);
}

/// A tensor of three blocks that take both forms, and its delta.
struct Sample {
  Bytes before = random_bytes((2 * kBlock + 40) * 2, 3);
  Bytes now = sample_of(before);
  Bytes delta = make(before, now, 2);

  static Bytes sample_of(const Bytes& before) {
    Bytes now = before;
    for (size_t at : {size_t{0}, size_t{2}, 2 * kBlock - 2, 2 * kBlock, 2 * kBlock + 300})
      now[at] ^= std::byte{1};
    for (size_t at = 4 * kBlock; at < now.size(); at += 2) now[at] ^= std::byte{1};
    return now;
  }
};

TEST(DamagedDelta, OfAnyLengthButItsOwnIsRefused) {
  const Sample sample;
  ASSERT_EQ(applied(sample.before, sample.delta), sample.now);
  for (size_t length = 0; length < sample.delta.size(); length++) {
    Bytes cut(sample.delta.begin(), sample.delta.begin() + static_cast<ptrdiff_t>(length));
    refusal(sample.before, cut);
    if (length >= kHeader) refusal(sample.before, sealed(cut));
  }
  Bytes longer = sample.delta;
  longer.resize(longer.size() + 4);
  refusal(sample.before, longer);
  EXPECT_NE(refusal(sample.before, sealed(longer)).find("behind its last block"),
            std::string::npos);
}

TEST(DamagedDelta, WithAnyOtherByteIsRefused) {
  const Sample sample;
  for (size_t at = 0; at < sample.delta.size(); at++)
    for (int flip : {0x01, 0x80, 0xff}) {
      Bytes damaged = sample.delta;
      damaged[at] ^= static_cast<std::byte>(flip);
      refusal(sample.before, damaged);
    }
}

/// With the right checksum, a change of a value makes another valid delta. All others must be
/// refused, or write within the tensor.
TEST(DamagedDelta, WithTheRightChecksumStaysWithinTheTensor) {
  constexpr size_t kBeside = 4096;
  const Sample sample;
  for (size_t at = sizeof(uint64_t); at < sample.delta.size(); at++)
    for (int flip : {0x01, 0x10, 0x80, 0xff}) {
      Bytes damaged = sample.delta;
      damaged[at] ^= static_cast<std::byte>(flip);
      damaged = sealed(damaged);
      Bytes room(sample.before.size() + 2 * kBeside, std::byte{0xee});
      std::ranges::copy(sample.before, room.begin() + kBeside);
      const Bytes unchanged = room;
      try {
        apply_delta(room.data() + kBeside, sample.before.size(), damaged.data(), damaged.size());
        ASSERT_TRUE(std::equal(room.begin(), room.begin() + kBeside, unchanged.begin()));
        ASSERT_TRUE(std::equal(room.end() - kBeside, room.end(), unchanged.end() - kBeside));
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), Code::kInvalidArgument);
        ASSERT_EQ(room, unchanged) << "byte " << at;
      }
    }
}

template <typename T>
Bytes with(Bytes delta, size_t at, T value) {
  std::memcpy(delta.data() + at, &value, sizeof value);
  return sealed(std::move(delta));
}

TEST(DamagedDelta, IsRefusedWithTheReason) {
  const Bytes before(200);
  Bytes now = before;
  now[20] = now[40] = std::byte{1};
  const Bytes delta = make(before, now, 2);
  constexpr size_t kMagic = 8, kVersion = 12, kWidth = 14, kTotal = 16, kCount = 24, kFirst = 28;
  auto expect = [&](const Bytes& damaged, const std::string& text) {
    std::string said = refusal(before, damaged);
    EXPECT_NE(said.find(text), std::string::npos) << said;
  };
  expect(Bytes(), "shorter than its header");
  expect(with<uint32_t>(delta, kMagic, 1), "no delta");
  expect(with<uint16_t>(delta, kVersion, 2), "version 2");
  expect(with<uint16_t>(delta, kWidth, 3), "elements of 3");
  expect(with<uint16_t>(delta, kWidth, 0), "elements of 0");
  expect(with<uint64_t>(delta, kTotal, 202), "a tensor of 202 bytes, and this one has 200");
  expect(with<uint64_t>(delta, kTotal, 201), "whole elements");
  expect(with<uint64_t>(delta, kTotal, ~uint64_t{0} - 1), "this one has 200");
  expect(with<uint32_t>(delta, kCount, 101), "more changed elements than elements");
  expect(with<uint32_t>(delta, kCount, 3), "in the middle of a block");
  expect(with<uint32_t>(delta, kCount, 1), "behind its last block");
  expect(with<uint32_t>(delta, kCount, ~uint32_t{0}), "in the middle of a block");
  expect(with<uint16_t>(delta, kFirst, 20), "do not ascend");
  expect(with<uint16_t>(delta, kFirst + 2, 10), "do not ascend");
  expect(with<uint16_t>(delta, kFirst + 2, 100), "outside its block");
  EXPECT_EQ(applied(before, sealed(delta)), now);
}

TEST(Delta, RefusesOtherElements) {
  Bytes bytes(24);
  for (size_t width : {0, 3, 5, 16})
    for (const std::function<void()>& use : std::vector<std::function<void()>>{
             [&] { make_delta(bytes.data(), bytes.data(), 24, width, bytes.data(), 0); },
             [&] { changed_elements(bytes.data(), bytes.data(), 24, width); },
             [&] { most_delta_bytes(24, width); }})
      EXPECT_EQ(error_of(use).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { most_delta_bytes(7, 2); }).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace ringcoll
