// float16 and bfloat16 by definition: the representable number that is nearest, of two equally near
// the one whose last bit is 0. For tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/types.h"

namespace ringcoll::testing {

inline double half_value(uint16_t bits, int mantissa_bits, int bias) {
  int exponent_bits = 15 - mantissa_bits;
  int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  int mantissa = bits & ((1 << mantissa_bits) - 1);
  double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

struct Half {
  DataType dtype;
  int mantissa_bits;
  int bias;

  double value(uint16_t bits) const { return half_value(bits, mantissa_bits, bias); }
  uint16_t infinity() const {
    return static_cast<uint16_t>(0x7fff >> mantissa_bits << mantissa_bits);
  }
  bool is_nan(uint16_t bits) const { return (bits & 0x7fff) > infinity(); }
  /// Nearest to `x`; `x` is no NaN. What is half-way to the number after the largest is infinite.
  uint16_t nearest(double x) const {
    uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    double magnitude = std::abs(x);
    if (std::isinf(magnitude)) return sign | infinity();
    uint16_t low = 0, high = infinity();  // value(low) <= magnitude < value(high)
    while (high - low > 1) {
      uint16_t middle = static_cast<uint16_t>((low + high) / 2);
      (value(middle) <= magnitude ? low : high) = middle;
    }
    double step = value(low) - (low > 0 ? value(low - 1) : 0);
    double above = high == infinity() ? value(low) + step : value(high);
    double down = magnitude - value(low), up = above - magnitude;
    bool take_high = up < down || (up == down && low % 2 == 1);
    return sign | (take_high ? high : low);
  }
};
inline constexpr Half kFloat16 = {RC_FLOAT16, 10, 15};
inline constexpr Half kBfloat16 = {RC_BFLOAT16, 7, 127};

}  // namespace ringcoll::testing
