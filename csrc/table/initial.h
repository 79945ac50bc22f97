// The values that a row has before its first push.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace ringcoll {

/// They follow from the row's id and the seed alone, and are the same bits on every machine.
struct Initial {
  enum class Kind : uint8_t { kZeros, kConstant, kUniform, kNormal };
  Kind kind = Kind::kZeros;
  double first = 0;   // the constant, the lower end or the mean
  double second = 0;  // the upper end, which is excluded but for rounding, or the deviation
  uint64_t seed = 0;
  bool operator==(const Initial&) const = default;

  /// Precondition: fits(dtype), and a FloatEnvironment exists in this thread.
  void fill(DataType dtype, int64_t id, void* row, int64_t count) const;
  /// Random numbers are for floating-point types. A constant is a number that the type has, or, if
  /// that is a floating-point type, rounds to.
  bool fits(DataType dtype) const;
};

/// Spreads the bits of a number. Each result belongs to one number.
inline uint64_t spread(uint64_t bits) {  // the finalizer of SplitMix64
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

}  // namespace ringcoll
