// Every kernel against plain loops written here, on every instruction set that this machine has.
#include "reduce/reduce.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "reduce/halves_testing.h"
#include "reduce/targets_testing.h"

namespace ringcoll {
namespace {

class Kernels : public testing::EachTarget {};
INSTANTIATE_TEST_SUITE_P(Target, Kernels, ::testing::ValuesIn(testing::all_targets()),
                         testing::target_text);

// Enough for unrolled turns, single vectors and a tail on the widest vectors of the narrowest type.
constexpr int64_t kCount = 4 * 64 + 3 * 64 + 37;
// What is combined from four places at a time, and as much again.
constexpr int64_t kLongCount = (16 << 10) / 4 + kCount;

using testing::Half;
using testing::kBfloat16;
using testing::kFloat16;

// ---- float16 and bfloat16.

void expect_half(const Half& half, uint16_t got, double expected, const std::string& what) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(half.is_nan(got)) << what << ": " << std::hex << got << " is no NaN";
  } else {
    EXPECT_EQ(got, half.nearest(expected)) << what << ", of " << expected;
  }
}

void expect_half_identity(const Half& half) {
  std::vector<uint16_t> all(65536), out(65536);
  for (size_t i = 0; i < all.size(); i++) all[i] = static_cast<uint16_t>(i);
  scale_kernel(half.dtype)(out.data(), all.data(), 1.0, 65536);
  for (size_t i = 0; i < all.size(); i++) {
    if (half.is_nan(all[i]))
      EXPECT_TRUE(half.is_nan(out[i])) << std::hex << i;
    else
      EXPECT_EQ(out[i], all[i]) << std::hex << i;
  }
}

TEST_P(Kernels, EveryHalfSurvivesConversion) {
  expect_half_identity(kFloat16);
  expect_half_identity(kBfloat16);
}

// A float32 result of each kind of rounding: a product has twice the digits.
void expect_rounding(const Half& half) {
  std::mt19937 random(7);
  std::vector<uint16_t> a(20000), b(20000), out(20000);
  for (auto& bits : a) bits = static_cast<uint16_t>(random());
  for (auto& bits : b) bits = static_cast<uint16_t>(random());
  const int64_t count = static_cast<int64_t>(a.size());
  struct Case {
    ReduceOp op;
    std::function<float(float, float)> of;
  };
  for (const Case& c : {Case{RC_SUM, [](float x, float y) { return x + y; }},
                        Case{RC_PRODUCT, [](float x, float y) { return x * y; }}}) {
    combine_kernel(half.dtype, c.op)(out.data(), a.data(), b.data(), count);
    for (size_t i = 0; i < a.size(); i++) {
      float x = static_cast<float>(half.value(a[i])), y = static_cast<float>(half.value(b[i]));
      expect_half(half, out[i], c.of(x, y), fmt::format("{:x} {} {:x}", a[i], name_of(c.op), b[i]));
    }
  }
}

TEST_P(Kernels, HalvesRoundToNearestEven) {
  expect_rounding(kFloat16);
  expect_rounding(kBfloat16);
}

TEST_P(Kernels, HalvesRoundTiesToEven) {
  // 2048 + 1 is half-way between 2048 and 2050 in float16; 2050 + 1 between 2050 and 2052.
  std::vector<uint16_t> a = {kFloat16.nearest(2048), kFloat16.nearest(2050)};
  std::vector<uint16_t> one(2, kFloat16.nearest(1)), out(2);
  combine_kernel(RC_FLOAT16, RC_SUM)(out.data(), a.data(), one.data(), 2);
  EXPECT_EQ(kFloat16.value(out[0]), 2048);
  EXPECT_EQ(kFloat16.value(out[1]), 2052);
  // 65504 is the largest; 65504 + 16 is half-way to the next and becomes infinite.
  a = {kFloat16.nearest(65504), kFloat16.nearest(65504)};
  std::vector<uint16_t> add = {kFloat16.nearest(16), kFloat16.nearest(15)};
  combine_kernel(RC_FLOAT16, RC_SUM)(out.data(), a.data(), add.data(), 2);
  EXPECT_EQ(out[0], kFloat16.infinity());
  EXPECT_EQ(kFloat16.value(out[1]), 65504);
}

// ---- all types: each element against one scalar operation.

template <typename T>
T reference(ReduceOp op, T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    bool nan = std::isnan(left) || std::isnan(right);
    if (op == RC_MIN) return nan ? std::numeric_limits<T>::quiet_NaN() : std::fmin(left, right);
    if (op == RC_MAX) return nan ? std::numeric_limits<T>::quiet_NaN() : std::fmax(left, right);
    return op == RC_PRODUCT ? left * right : left + right;
  } else {
    // In 128 bits nothing overflows, then the low ones are what wraps.
    using Wide = unsigned __int128;
    Wide a = static_cast<Wide>(left), b = static_cast<Wide>(right);
    switch (op) {
      case RC_MIN:
        return left < right ? left : right;
      case RC_MAX:
        return left > right ? left : right;
      case RC_PRODUCT:
        return static_cast<T>(a * b);
      case RC_BIT_AND:
        return static_cast<T>(a & b);
      case RC_BIT_OR:
        return static_cast<T>(a | b);
      default:
        return static_cast<T>(a + b);
    }
  }
}

template <typename T>
bool same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b;
}

template <typename T>
std::vector<T> random_values(unsigned seed, int64_t count = kCount) {
  std::mt19937_64 random(seed);
  std::vector<T> values(count);
  for (T& value : values) {
    uint64_t word = random();
    if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<T>(static_cast<int64_t>(word)) / static_cast<T>(1 << 30);
      if (word % 29 == 0) value = std::numeric_limits<T>::quiet_NaN();
      if (word % 31 == 0) value = std::numeric_limits<T>::infinity();
      if (word % 37 == 0) value = std::numeric_limits<T>::denorm_min();
    } else {
      value = static_cast<T>(word);
      if (word % 29 == 0) value = std::numeric_limits<T>::min();
      if (word % 31 == 0) value = std::numeric_limits<T>::max();
    }
  }
  return values;
}

/// Bytes with `shift` odd bytes before them, and a guard after them.
class Unaligned {
 public:
  Unaligned(const void* from, size_t bytes, size_t shift)
      : bytes_(bytes), shift_(shift), memory_(bytes + shift + kGuard, 0x5a) {
    if (from && bytes > 0) std::memcpy(data(), from, bytes);
  }
  uint8_t* data() { return memory_.data() + shift_; }
  bool guards_intact() const {
    for (size_t i = 0; i < shift_; i++)
      if (memory_[i] != 0x5a) return false;
    for (size_t i = shift_ + bytes_; i < memory_.size(); i++)
      if (memory_[i] != 0x5a) return false;
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t bytes_;
  size_t shift_;
  std::vector<uint8_t> memory_;
};

enum class Out { kElsewhere, kLeft, kRight };

template <typename T>
void expect_combined(DataType dtype, ReduceOp op, int64_t count, Out where, size_t shift,
                     Operands operands) {
  std::vector<T> a = random_values<T>(1, count), b = random_values<T>(2, count);
  size_t bytes = static_cast<size_t>(count) * sizeof(T);
  Unaligned left(a.data(), bytes, shift), right(b.data(), bytes, 2 * shift), out(nullptr, bytes, 3);
  Unaligned& result = where == Out::kLeft ? left : where == Out::kRight ? right : out;
  combine_kernel(dtype, op, operands)(result.data(), left.data(), right.data(), count);
  for (int64_t i = 0; i < count; i++) {
    T got;
    std::memcpy(&got, result.data() + i * sizeof(T), sizeof(T));
    ASSERT_TRUE(same(got, reference(op, a[i], b[i])))
        << name_of(dtype) << " " << name_of(op) << ", element " << i << " of " << count << ": "
        << +a[i] << ", " << +b[i] << " gave " << +got;
  }
  EXPECT_TRUE(left.guards_intact() && right.guards_intact() && out.guards_intact())
      << name_of(dtype) << " " << name_of(op) << " of " << count << " wrote beyond";
}

template <typename T>
void expect_all_combined(DataType dtype) {
  std::vector<ReduceOp> ops = {RC_SUM, RC_AVERAGE, RC_MIN, RC_MAX, RC_PRODUCT};
  if (!std::is_floating_point_v<T>) ops.insert(ops.end(), {RC_BIT_AND, RC_BIT_OR});
  for (ReduceOp op : ops) {
    for (int64_t count = 0; count <= 70; count++)
      expect_combined<T>(dtype, op, count, Out::kElsewhere, count % 3, Operands::kInCaches);
    for (Out where : {Out::kElsewhere, Out::kLeft, Out::kRight})
      for (size_t shift : {0, 1, 5}) {
        expect_combined<T>(dtype, op, kCount, where, shift, Operands::kInCaches);
        for (Operands operands : {Operands::kInCaches, Operands::kInMemory})
          expect_combined<T>(dtype, op, kLongCount, where, shift, operands);
      }
  }
}

TEST_P(Kernels, CombineFloats) {
  expect_all_combined<float>(RC_FLOAT32);
  expect_all_combined<double>(RC_FLOAT64);
}
TEST_P(Kernels, CombineSmallIntegers) {
  expect_all_combined<uint8_t>(RC_UINT8);
  expect_all_combined<int8_t>(RC_INT8);
  expect_all_combined<uint16_t>(RC_UINT16);
  expect_all_combined<int16_t>(RC_INT16);
}
TEST_P(Kernels, CombineLargeIntegers) {
  expect_all_combined<uint32_t>(RC_UINT32);
  expect_all_combined<int32_t>(RC_INT32);
  expect_all_combined<uint64_t>(RC_UINT64);
  expect_all_combined<int64_t>(RC_INT64);
}

TEST_P(Kernels, HalvesHaveMinMaxAndTails) {
  for (const Half& half : {kFloat16, kBfloat16})
    for (int64_t count : {int64_t{1}, int64_t{7}, int64_t{15}, int64_t{33}, kCount}) {
      std::vector<uint16_t> a = random_values<uint16_t>(3), b = random_values<uint16_t>(4);
      size_t bytes = static_cast<size_t>(count) * 2;
      Unaligned left(a.data(), bytes, 1), right(b.data(), bytes, 3);
      combine_kernel(half.dtype, RC_MIN)(left.data(), left.data(), right.data(), count);
      combine_kernel(half.dtype, RC_MAX)(right.data(), left.data(), right.data(), count);
      for (int64_t i = 0; i < count; i++) {
        double x = half.value(a[i]), y = half.value(b[i]);
        double least = std::isnan(x) || std::isnan(y) ? std::nan("") : std::fmin(x, y);
        double most = std::isnan(x) || std::isnan(y) ? std::nan("") : std::fmax(least, y);
        uint16_t got_least, got_most;
        std::memcpy(&got_least, left.data() + 2 * i, 2);
        std::memcpy(&got_most, right.data() + 2 * i, 2);
        EXPECT_TRUE(same(half.value(got_least), least)) << x << " " << y;
        EXPECT_TRUE(same(half.value(got_most), most)) << x << " " << y;
      }
      EXPECT_TRUE(left.guards_intact() && right.guards_intact());
    }
}

TEST_P(Kernels, FloatNanOfEitherSideIsKept) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> a = {nan, 1, nan}, b = {1, nan, nan}, out(3);
  for (ReduceOp op : {RC_MIN, RC_MAX, RC_SUM, RC_PRODUCT}) {
    combine_kernel(RC_FLOAT32, op)(out.data(), a.data(), b.data(), 3);
    for (float value : out) EXPECT_TRUE(std::isnan(value)) << name_of(op);
  }
}

template <typename Bits>
void expect_left_nan(DataType dtype, Bits quiet_nan) {
  for (ReduceOp op : {RC_MIN, RC_MAX})
    for (size_t count : {1, 7, 70}) {
      std::vector<Bits> a(count, quiet_nan + 1), b(count, quiet_nan + 2), out(count);
      combine_kernel(dtype, op)(out.data(), a.data(), b.data(), static_cast<int64_t>(count));
      EXPECT_EQ(out, a) << name_of(dtype) << " " << name_of(op);
    }
}

TEST_P(Kernels, OfTwoNansTheLeftOneIsTheLeastAndTheMost) {
  expect_left_nan<uint16_t>(RC_BFLOAT16, 0x7fc0);
  expect_left_nan<uint32_t>(RC_FLOAT32, 0x7fc00000);
  expect_left_nan<uint64_t>(RC_FLOAT64, 0x7ff8000000000000);
}

TEST_P(Kernels, BoolIsLogical) {
  std::vector<uint8_t> a = {0, 0, 1, 1, 2, 128, 255, 0}, b = {0, 1, 0, 1, 1, 4, 0, 16}, out(8);
  std::vector<uint8_t> either = {0, 1, 1, 1, 1, 1, 1, 1}, both = {0, 0, 0, 1, 1, 1, 0, 0};
  for (ReduceOp op : {RC_SUM, RC_AVERAGE, RC_MAX, RC_BIT_OR}) {
    combine_kernel(RC_BOOL, op)(out.data(), a.data(), b.data(), 8);
    EXPECT_EQ(out, either) << name_of(op);
  }
  for (ReduceOp op : {RC_PRODUCT, RC_MIN, RC_BIT_AND}) {
    combine_kernel(RC_BOOL, op)(out.data(), a.data(), b.data(), 8);
    EXPECT_EQ(out, both) << name_of(op);
  }
  std::vector<uint8_t> many(1000, 2), few(1000, 4), all(1000);
  combine_kernel(RC_BOOL, RC_MIN)(all.data(), many.data(), few.data(), 1000);
  EXPECT_EQ(all, std::vector<uint8_t>(1000, 1));
}

// ---- scaling

template <typename T>
std::vector<T> scaled(DataType dtype, std::vector<T> values, double factor) {
  scale_kernel(dtype)(values.data(), values.data(), factor, static_cast<int64_t>(values.size()));
  return values;
}

TEST_P(Kernels, ScaleFloats) {
  std::vector<float> a = random_values<float>(5);
  std::vector<double> d = random_values<double>(6);
  std::vector<float> by_tenth = scaled(RC_FLOAT32, a, 0.1);
  std::vector<double> d_by_tenth = scaled(RC_FLOAT64, d, 0.1);
  for (int64_t i = 0; i < kCount; i++) {
    EXPECT_TRUE(same(by_tenth[i], a[i] * 0.1f)) << a[i];
    EXPECT_TRUE(same(d_by_tenth[i], d[i] * 0.1)) << d[i];
  }
  for (const Half& half : {kFloat16, kBfloat16}) {
    std::vector<uint16_t> h = random_values<uint16_t>(7), third = scaled(half.dtype, h, 1.0 / 3);
    for (int64_t i = 0; i < kCount; i++)
      expect_half(half, third[i],
                  static_cast<float>(half.value(h[i])) * static_cast<float>(1.0 / 3), "a third");
  }
}

TEST_P(Kernels, ScaleLeavesTheRestAlone) {
  for (DataType dtype : {RC_FLOAT16, RC_BFLOAT16, RC_FLOAT32, RC_FLOAT64, RC_INT32})
    for (int64_t count = 0; count < 40; count++) {
      Unaligned memory(nullptr, static_cast<size_t>(count) * size_of(dtype), 1);
      scale_kernel(dtype)(memory.data(), memory.data(), 0.5, count);
      EXPECT_TRUE(memory.guards_intact()) << name_of(dtype) << " of " << count;
    }
}

TEST(ScaleIntegers, TruncatesTowardsZero) {
  EXPECT_EQ(scaled<int32_t>(RC_INT32, {7, -7, 8, -8, 1, -1}, 0.5),
            (std::vector<int32_t>{3, -3, 4, -4, 0, 0}));
  EXPECT_EQ(scaled<uint8_t>(RC_UINT8, {255, 3}, 0.9), (std::vector<uint8_t>{229, 2}));
}

TEST(ScaleIntegers, Saturates) {
  EXPECT_EQ(scaled<int8_t>(RC_INT8, {100, -100, 1}, 2.0), (std::vector<int8_t>{127, -128, 2}));
  EXPECT_EQ(scaled<uint8_t>(RC_UINT8, {100, 200}, -1.0), (std::vector<uint8_t>{0, 0}));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(scaled<int64_t>(RC_INT64, {kMost, kLeast}, 1.5), (std::vector<int64_t>{kMost, kLeast}));
  EXPECT_EQ(scaled<int64_t>(RC_INT64, {kMost, kLeast}, -1.0),
            (std::vector<int64_t>{-kMost, kMost}));
  EXPECT_EQ(scaled<int8_t>(RC_INT8, {127, -128}, -1.0), (std::vector<int8_t>{-127, 127}));
  constexpr uint64_t kMostUnsigned = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(scaled<uint64_t>(RC_UINT64, {kMostUnsigned}, 1.5),
            (std::vector<uint64_t>{kMostUnsigned}));
  EXPECT_EQ(scaled<int32_t>(RC_INT32, {5}, std::nan("")), (std::vector<int32_t>{0}));
  EXPECT_EQ(scaled<int32_t>(RC_INT32, {5, 0}, std::numeric_limits<double>::infinity()),
            (std::vector<int32_t>{std::numeric_limits<int32_t>::max(), 0}));
  EXPECT_EQ(scaled<int32_t>(RC_INT32, {5}, 0.0), (std::vector<int32_t>{0}));
}

// 49 * (1/49) is less than 1 in double.
TEST(ScaleIntegers, AveragesAndMultipliesExactly) {
  for (int64_t size = 1; size <= 1000; size++)
    EXPECT_EQ(scaled<int64_t>(RC_INT64, {size, -size, 7 * size, size - 1}, 1.0 / size),
              (std::vector<int64_t>{1, -1, 7, 0}))
        << size;
  constexpr int64_t kLarge = (int64_t{1} << 60) + 1;
  EXPECT_EQ(scaled<int64_t>(RC_INT64, {kLarge}, 1.0), (std::vector<int64_t>{kLarge}));
  EXPECT_EQ(scaled<int64_t>(RC_INT64, {kLarge}, -1.0), (std::vector<int64_t>{-kLarge}));
  EXPECT_EQ(scaled<int64_t>(RC_INT64, {10, 100, -10}, 0.7), (std::vector<int64_t>{7, 70, -7}));
  EXPECT_EQ(scaled<int64_t>(RC_INT64, {kLarge}, 3.0), (std::vector<int64_t>{3 * kLarge}));
  EXPECT_EQ(scaled<int64_t>(RC_INT64, {kLarge - 1}, -0.375),
            (std::vector<int64_t>{-3 * ((kLarge - 1) / 8)}));
  EXPECT_EQ(scaled<uint64_t>(RC_UINT64, {(uint64_t{1} << 62) + 1}, 3.0),
            (std::vector<uint64_t>{3 * ((uint64_t{1} << 62) + 1)}));
  EXPECT_EQ(scaled<uint64_t>(RC_UINT64, {~uint64_t{0}}, 1.0 / 3),
            (std::vector<uint64_t>{~uint64_t{0} / 3}));
}

TEST(ScaleBool, IsTrueFromOne) {
  EXPECT_EQ(scaled<uint8_t>(RC_BOOL, {0, 1, 7}, 1.0), (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_EQ(scaled<uint8_t>(RC_BOOL, {0, 1, 7}, 0.5), (std::vector<uint8_t>{0, 0, 0}));
  EXPECT_EQ(scaled<uint8_t>(RC_BOOL, {0, 1, 7}, -2.0), (std::vector<uint8_t>{0, 0, 0}));
}

// ---- lookup

TEST(Lookup, RefusesBitOperationsOnFloats) {
  for (DataType dtype : {RC_FLOAT16, RC_BFLOAT16, RC_FLOAT32, RC_FLOAT64})
    for (ReduceOp op : {RC_BIT_AND, RC_BIT_OR}) {
      try {
        combine_kernel(dtype, op);
        ADD_FAILURE() << name_of(dtype);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kInvalidArgument);
        EXPECT_NE(std::string(error.what()).find(name_of(dtype)), std::string::npos);
      }
    }
}

TEST(Lookup, HasEveryOtherKernel) {
  for (int dtype = 0; dtype < RC_DTYPE_COUNT; dtype++) {
    EXPECT_NE(scale_kernel(static_cast<DataType>(dtype)), nullptr);
    for (ReduceOp op : {RC_SUM, RC_AVERAGE, RC_MIN, RC_MAX, RC_PRODUCT})
      EXPECT_NE(combine_kernel(static_cast<DataType>(dtype), op), nullptr);
  }
  EXPECT_THROW(combine_kernel(static_cast<DataType>(99), RC_SUM), Error);
  EXPECT_THROW(combine_kernel(RC_INT32, static_cast<ReduceOp>(99)), Error);
  EXPECT_THROW(scale_kernel(static_cast<DataType>(99)), Error);
}

TEST(Neutral, ChangesNothingItIsCombinedWith) {
  constexpr int64_t kCount = 5;
  for (int d = 0; d < RC_DTYPE_COUNT; d++)
    for (ReduceOp op : {RC_SUM, RC_MIN, RC_MAX, RC_PRODUCT, RC_BIT_AND, RC_BIT_OR}) {
      auto dtype = static_cast<DataType>(d);
      bool is_float = dtype >= RC_FLOAT16 && dtype <= RC_FLOAT64;
      if (is_float && (op == RC_BIT_AND || op == RC_BIT_OR)) continue;
      size_t bytes = kCount * size_of(dtype);
      // Of floats, infinities too; no NaN, which is what it is with any other.
      std::vector<uint64_t> values = {0, 1, ~uint64_t{0}, uint64_t{1} << (8 * size_of(dtype) - 1)};
      if (is_float) values = {0, 0x3c3c3c3c3c3c3c3c, 0x8080808080808080, 0x7000700070007000};
      if (dtype == RC_BOOL) values = {0, 1};
      for (uint64_t value : values) {
        std::vector<std::byte> some(bytes), neutral(bytes + 1, std::byte{77}), out(bytes);
        for (size_t at = 0; at < bytes; at++)
          some[at] = static_cast<std::byte>(value >> 8 * (at % size_of(dtype)));
        fill_neutral(dtype, op, neutral.data(), kCount);
        EXPECT_EQ(neutral[bytes], std::byte{77});
        combine_kernel(dtype, op)(out.data(), neutral.data(), some.data(), kCount);
        EXPECT_EQ(out, some) << name_of(dtype) << " " << name_of(op) << " " << value;
      }
    }
  fill_neutral(RC_INT8, RC_SUM, nullptr, 0);
}

// The extremes of floats are infinities.
TEST(Neutral, IsAnInfinityForExtremesOfFloats) {
  float single = 0;
  double twice = 0;
  fill_neutral(RC_FLOAT32, RC_MIN, &single, 1);
  fill_neutral(RC_FLOAT64, RC_MAX, &twice, 1);
  EXPECT_EQ(single, std::numeric_limits<float>::infinity());
  EXPECT_EQ(twice, -std::numeric_limits<double>::infinity());
  uint16_t half = 0;
  fill_neutral(RC_FLOAT16, RC_MIN, &half, 1);
  EXPECT_EQ(half, kFloat16.infinity());
  fill_neutral(RC_BFLOAT16, RC_MIN, &half, 1);
  EXPECT_EQ(half, kBfloat16.infinity());
}

TEST(Lookup, NamesTheInstructionSet) { EXPECT_GT(std::strlen(simd_target()), 2u); }

// Bytes that tell where they come from: no two pages and no two lines of a page are alike.
std::vector<uint8_t> places(size_t bytes) {
  std::vector<uint8_t> places(bytes);
  for (size_t i = 0; i < bytes; i++)
    places[i] = static_cast<uint8_t>(i * 31 + i / 64 + i / 4096 * 7);
  return places;
}

using Copy = void (*)(void*, const void*, size_t);

void expect_copies(Copy copy) {
  for (size_t bytes : {0, 1, 63, 64, 257, 4096, 16384, 70001})
    for (size_t shift : {0, 1, 63}) {
      std::vector<uint8_t> from = places(bytes);
      Unaligned to(nullptr, bytes, shift);
      copy(to.data(), from.data(), bytes);
      EXPECT_TRUE(to.guards_intact());
      EXPECT_TRUE(std::equal(from.begin(), from.end(), to.data())) << bytes << " " << shift;
      copy(to.data(), to.data(), bytes);
      EXPECT_TRUE(std::equal(from.begin(), from.end(), to.data()));
    }
  copy(nullptr, nullptr, 0);
}

TEST_P(Kernels, FetchBytesCopiesAnythingAndNothing) { expect_copies(fetch_bytes); }
TEST_P(Kernels, StreamBytesCopiesAnythingAndNothing) { expect_copies(stream_bytes); }

}  // namespace
}  // namespace ringcoll
