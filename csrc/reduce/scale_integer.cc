// Scaling of integers and bool. It is rare (averages of counters), so plain loops suffice.
#include <cmath>
#include <cstring>
#include <limits>

#include "reduce/kernels.h"

namespace ringcoll {
namespace {

/// k if `factor` is the double nearest to 1/k for an integer k of at most 1e9, else 0. An average
/// has such a factor. x * (1/49) in double is less than 1 for x = 49, but x / 49 is 1.
int64_t divisor_of(double factor) {
  double k = std::nearbyint(1 / factor);
  bool exact = std::abs(k) >= 1 && std::abs(k) <= 1e9 && 1 / k == factor;
  return exact ? static_cast<int64_t>(k) : 0;
}

/// Truncates towards zero. A value out of range becomes the nearest bound, and NaN becomes 0.
template <typename T, typename Product>
T saturated(Product value) {
  constexpr auto kLeast = static_cast<Product>(std::numeric_limits<T>::min());
  // One above the maximum, because the maximum of 64-bit integers is not a double.
  constexpr auto kBeyond = 2 * static_cast<Product>(std::numeric_limits<T>::max() / 2 + 1);
  if (std::isnan(value)) return 0;
  if (value <= kLeast) return std::numeric_limits<T>::min();
  if (value >= kBeyond) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

/// Exact for a whole factor: a long double holds all integers of 64 bits. Otherwise the product is
/// that of doubles, in which 10 * 0.7 is 7 and not a little less.
template <typename T>
T multiplied(T value, double factor, bool is_whole) {
  static_assert(std::numeric_limits<long double>::digits >= 64);
  if (is_whole) return saturated<T>(static_cast<long double>(value) * factor);
  return saturated<T>(static_cast<double>(value) * factor);
}

template <typename T>
T divided(T value, int64_t by) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    return by < 0 ? 0 : value / static_cast<uint64_t>(by);
  } else {
    // The least integer by -1 is the only quotient that does not fit.
    if (std::is_signed_v<T> && by == -1 && value == std::numeric_limits<T>::min())
      return std::numeric_limits<T>::max();
    int64_t quotient = static_cast<int64_t>(value) / by;
    return std::is_unsigned_v<T> && quotient < 0 ? 0 : static_cast<T>(quotient);
  }
}

template <typename T>
void scale(void* out_bytes, const void* in_bytes, double factor, int64_t count) {
  auto* out = static_cast<std::byte*>(out_bytes);
  auto* in = static_cast<const std::byte*>(in_bytes);
  const int64_t divisor = divisor_of(factor);
  const bool is_whole = std::nearbyint(factor) == factor;
  for (int64_t i = 0; i < count; i++) {
    T value;
    std::memcpy(&value, in + i * sizeof(T), sizeof(T));
    value = divisor != 0 ? divided(value, divisor) : multiplied(value, factor, is_whole);
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

void scale_bool(void* out_bytes, const void* in_bytes, double factor, int64_t count) {
  auto* out = static_cast<uint8_t*>(out_bytes);
  auto* in = static_cast<const uint8_t*>(in_bytes);
  uint8_t true_becomes = factor >= 1;
  for (int64_t i = 0; i < count; i++) out[i] = in[i] != 0 ? true_becomes : 0;
}

}  // namespace

ScaleKernel integer_scale_kernel(DataType dtype) {
  switch (dtype) {
    case RC_UINT8:
      return scale<uint8_t>;
    case RC_INT8:
      return scale<int8_t>;
    case RC_UINT16:
      return scale<uint16_t>;
    case RC_INT16:
      return scale<int16_t>;
    case RC_UINT32:
      return scale<uint32_t>;
    case RC_INT32:
      return scale<int32_t>;
    case RC_UINT64:
      return scale<uint64_t>;
    case RC_INT64:
      return scale<int64_t>;
    case RC_BOOL:
      return scale_bool;
    default:
      return nullptr;
  }
}

}  // namespace ringcoll
