// Arithmetic on bfloat16 (the upper half of a float32), for the places where Horovod itself
// computes on the host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

inline float widen_bfloat16(uint16_t value) {
  uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

/// Rounds to nearest, ties to even. A NaN stays a NaN.
inline uint16_t narrow_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// out[i] = in[i] * factor; `in` and `out` may be the same.
inline void scale_bfloat16(const uint16_t* in, uint16_t* out, int64_t count, double factor) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = narrow_bfloat16(widen_bfloat16(in[i]) * static_cast<float>(factor));
  }
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
