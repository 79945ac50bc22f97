#include "table/initial.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "rules/rule.h"

namespace ringcoll {
namespace {

/// SplitMix64 (Steele, Lea and Flood, 2014), one sequence for each row.
class Random {
 public:
  Random(uint64_t seed, int64_t id)
      : state_(spread(seed + spread(static_cast<uint64_t>(id) + kStep))) {}
  /// At least 0 and below 1, of 53 bits.
  double uniform() {
    state_ += kStep;
    return static_cast<double>(spread(state_) >> 11) * 0x1p-53;
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  uint64_t state_;
};

/// The natural logarithm, by basic operations alone: the last bits of std::log() depend on the C
/// library. Precondition: a normal number above 0.
double logarithm(double number) {
  const auto bits = std::bit_cast<uint64_t>(number);
  constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1;
  const auto exponent = static_cast<int64_t>(bits >> 52) - 1023;
  const double mantissa = std::bit_cast<double>((bits & kMantissa) | std::bit_cast<uint64_t>(1.0));
  const double ratio = (mantissa - 1) / (mantissa + 1);  // at most 1/3
  double sum = 0;
  for (int power = 33; power > 0; power -= 2) sum = sum * (ratio * ratio) + 1.0 / power;
  return static_cast<double>(exponent) * 0x1.62e42fefa39efp-1 + 2 * ratio * sum;
}

/// Marsaglia's polar method, which gives two numbers, of which one is used.
double normal(Random& random) {
  while (true) {
    const double x = 2 * random.uniform() - 1, y = 2 * random.uniform() - 1;
    const double square = x * x + y * y;
    if (square < 1 && square > 0x1p-500) return x * std::sqrt(-2 * logarithm(square) / square);
  }
}

double next(const Initial& initial, Random& random) {
  switch (initial.kind) {
    case Initial::Kind::kUniform:
      return initial.first + (initial.second - initial.first) * random.uniform();
    case Initial::Kind::kNormal:
      return initial.first + initial.second * normal(random);
    default:
      return initial.first;
  }
}

template <typename T>
void fill_as(const Initial& initial, int64_t id, void* row, int64_t count) {
  Random random(initial.seed, id);
  auto* bytes = static_cast<std::byte*>(row);
  for (int64_t i = 0; i < count; i++) {
    const T element = static_cast<T>(next(initial, random));
    std::memcpy(bytes + i * sizeof(T), &element, sizeof(T));
  }
}

/// The rule rounds float32 as it rounds the results of pushes.
void fill_halves(const Initial& initial, DataType dtype, int64_t id, void* row, int64_t count) {
  Random random(initial.seed, id);
  static const Rule assign{rules::Assign{}};
  RowTally unused;
  float element = 0;
  auto* bytes = static_cast<std::byte*>(row);
  for (int64_t i = 0; i < count; i++) {
    element = static_cast<float>(next(initial, random));
    assign.apply(dtype, {bytes + i * 2, {}, 1, &unused}, {RC_FLOAT32, &element});
  }
}

/// Calls visit(T{}) with the type of the elements. Precondition: not a 16-bit floating-point type.
template <typename Visit>
auto with_type(DataType dtype, Visit&& visit) {
  switch (dtype) {
    case RC_INT8:
      return visit(int8_t{});
    case RC_UINT16:
      return visit(uint16_t{});
    case RC_INT16:
      return visit(int16_t{});
    case RC_UINT32:
      return visit(uint32_t{});
    case RC_INT32:
      return visit(int32_t{});
    case RC_UINT64:
      return visit(uint64_t{});
    case RC_INT64:
      return visit(int64_t{});
    case RC_FLOAT32:
      return visit(float{});
    case RC_FLOAT64:
      return visit(double{});
    default:
      return visit(uint8_t{});  // and bool
  }
}

bool is_half(DataType dtype) { return dtype == RC_FLOAT16 || dtype == RC_BFLOAT16; }

}  // namespace

void Initial::fill(DataType dtype, int64_t id, void* row, int64_t count) const {
  if (kind == Kind::kZeros) {
    if (count > 0) std::memset(row, 0, static_cast<size_t>(count) * size_of(dtype));
  } else if (is_half(dtype)) {
    fill_halves(*this, dtype, id, row, count);
  } else {
    with_type(dtype, [&](auto type) { fill_as<decltype(type)>(*this, id, row, count); });
  }
}

bool Initial::fits(DataType dtype) const {
  if (kind == Kind::kZeros || is_half(dtype) || dtype == RC_FLOAT32 || dtype == RC_FLOAT64)
    return true;
  if (kind != Kind::kConstant || first != std::floor(first)) return false;
  if (dtype == RC_BOOL) return first == 0 || first == 1;
  return with_type(dtype, [&](auto type) {
    // As doubles, the ends of 64-bit types may be one too far.
    using Limits = std::numeric_limits<decltype(type)>;
    const auto least = static_cast<double>(Limits::lowest());
    return first >= least && first < std::ldexp(1.0, Limits::digits);
  });
}

}  // namespace ringcoll
