// Comparison against a plain loop, on every instruction set that this machine has.
#include "reduce/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "base/error_testing.h"
#include "reduce/targets_testing.h"

namespace ringcoll {
namespace {

using testing::error_of;

class Compare : public testing::EachTarget {};
INSTANTIATE_TEST_SUITE_P(Target, Compare, ::testing::ValuesIn(testing::all_targets()),
                         testing::target_text);

constexpr std::array<size_t, 4> kWidths = {1, 2, 4, 8};
/// No value that a comparison writes.
constexpr std::byte kUntouched{0xa5};

/// Two versions of a tensor that begin at any address, and where they differ.
struct Versions {
  Versions(size_t count, size_t width, double density, size_t offset, uint64_t seed)
      : count(count), width(width), offset(offset), before_(offset + count * width) {
    std::mt19937_64 random(seed);
    for (std::byte& byte : before_) byte = static_cast<std::byte>(random());
    now_ = before_;
    std::bernoulli_distribution changes(density);
    for (size_t i = 0; i < count; i++)
      if (changes(random)) change(i, random() % (8 * width));
  }
  void change(size_t i, size_t bit) {
    now_[offset + i * width + bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    changed.push_back(static_cast<uint16_t>(i));
  }
  const std::byte* before() const { return before_.data() + offset; }
  const std::byte* now() const { return now_.data() + offset; }

  size_t count, width, offset;
  std::vector<uint16_t> changed{};

 private:
  std::vector<std::byte> before_, now_{};
};

/// What find_changed() found, and whether it stayed within the room that it asks for.
struct Found {
  explicit Found(const Versions& of, size_t most)
      : room(std::min(of.count, most) + kChangedBeyond),
        indices(room + 1, 0xa5a5),
        values((room + 1) * of.width, kUntouched) {
    count = find_changed(of.before(), of.now(), of.count, of.width, most, indices.data(),
                         values.data());
    EXPECT_EQ(indices[room], 0xa5a5);
    EXPECT_EQ(values[room * of.width], kUntouched);
  }

  size_t room, count = 0;
  std::vector<uint16_t> indices;
  std::vector<std::byte> values;
};

void expect_all_found(const Versions& versions) {
  Found found(versions, versions.count);
  ASSERT_EQ(found.count, versions.changed.size());
  EXPECT_TRUE(std::equal(versions.changed.begin(), versions.changed.end(), found.indices.begin()));
  const size_t width = versions.width;
  for (size_t i = 0; i < found.count; i++)
    ASSERT_EQ(std::memcmp(found.values.data() + i * width,
                          versions.now() + versions.changed[i] * width, width),
              0)
        << i;
  EXPECT_EQ(count_changed(versions.before(), versions.now(), versions.count, width), found.count);
}

TEST_P(Compare, FindsWhatDiffersInEveryLength) {
  for (size_t width : kWidths)
    for (size_t count = 0; count < 260; count++)
      for (double density : {0.0, 0.02, 0.5, 1.0}) {
        SCOPED_TRACE(fmt::format("{} elements of {} bytes, density {}", count, width, density));
        expect_all_found(Versions(count, width, density, 0, count));
      }
}

TEST_P(Compare, FindsWhatDiffersAtEveryAddressAndDensity) {
  for (size_t width : kWidths)
    for (size_t offset : {0, 1, 2, 3, 7, 8, 31, 63})
      for (double density : {0.0, 0.001, 0.01, 0.1, 0.3, 0.9, 1.0}) {
        SCOPED_TRACE(fmt::format("width {}, offset {}, density {}", width, offset, density));
        expect_all_found(Versions(3001, width, density, offset, offset));
      }
}

TEST_P(Compare, FindsEachBitOfEachElement) {
  for (size_t width : kWidths)
    for (size_t i = 0; i < 130; i++)
      for (size_t bit = 0; bit < 8 * width; bit++) {
        Versions versions(130, width, 0, 1, bit);
        versions.change(i, bit);
        SCOPED_TRACE(fmt::format("width {}, element {}, bit {}", width, i, bit));
        expect_all_found(versions);
      }
}

TEST_P(Compare, TakesABlockOfTheLargestLength) {
  for (size_t width : kWidths) {
    expect_all_found(Versions(kComparedAtOnce, width, 0.01, 0, 1));
    expect_all_found(Versions(kComparedAtOnce, width, 1, 0, 1));
    Versions last(kComparedAtOnce, width, 0, 0, 1);
    last.change(kComparedAtOnce - 1, 0);
    expect_all_found(last);
  }
}

TEST_P(Compare, StopsWhereMoreDifferThanWasAskedFor) {
  for (size_t width : kWidths)
    for (size_t count : {64, 100, 5000})
      for (size_t most : {0, 1, 50, 63, 64, 99}) {
        Versions versions(count, width, 1, 0, 1);
        Found found(versions, most);  // within its room
        EXPECT_EQ(found.count > most, count > most);
        EXPECT_LE(found.count, std::min(count, most + 64));
      }
}

TEST_P(Compare, IsBitForBit) {
  const std::vector<double> before = {0.0, -0.0, std::bit_cast<double>(0x7ff8'0000'0000'0001), 1.0,
                                      std::bit_cast<double>(0x7ff8'0000'0000'0001)};
  const std::vector<double> now = {-0.0, -0.0, std::bit_cast<double>(0x7ff8'0000'0000'0001), 1.0,
                                   std::bit_cast<double>(0x7ff8'0000'0000'0002)};
  std::vector<uint16_t> indices(before.size() + kChangedBeyond);
  std::vector<double> values(before.size() + kChangedBeyond);
  ASSERT_EQ(find_changed(before.data(), now.data(), before.size(), sizeof(double), before.size(),
                         indices.data(), values.data()),
            2);
  EXPECT_EQ(indices[0], 0);
  EXPECT_EQ(indices[1], 4);
  EXPECT_EQ(std::bit_cast<uint64_t>(values[0]), 0x8000'0000'0000'0000);
  EXPECT_EQ(std::bit_cast<uint64_t>(values[1]), 0x7ff8'0000'0000'0002);
}

TEST(CompareWidths, AreThoseOfVectors) {
  for (size_t width = 0; width < 20; width++)
    EXPECT_EQ(can_compare(width), std::ranges::find(kWidths, width) != kWidths.end()) << width;
  EXPECT_EQ(error_of([] { count_changed(nullptr, nullptr, 0, 3); }).code(), Code::kInternal);
}

}  // namespace
}  // namespace ringcoll
