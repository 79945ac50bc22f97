// Codecs: how elements in memory become lanes, and back. Compiled once for each instruction set, by
// files that include it after foreach_target.h.
//
// The lanes of float16 and bfloat16 are float32. Conversion rounds to nearest even and keeps NaN.
// Highway's conversions are used only where they are one instruction: elsewhere version 1.0.3
// truncates, and turns infinities into numbers.
//
// Each instruction set needs its own copy, so the include guard toggles with the target.
#if defined(RINGCOLL_REDUCE_CODECS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGCOLL_REDUCE_CODECS_INL_H_
#undef RINGCOLL_REDUCE_CODECS_INL_H_
#else
#define RINGCOLL_REDUCE_CODECS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringcoll {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The codec of elements that become lanes without conversion.
template <typename T>
struct Plain {
  using Element = T;
  using Scalar = T;
  /// Four vectors per iteration: fewer loads do not use all of the second-level cache's bandwidth.
  static constexpr bool kUnrolled = hwy::IsFloat<T>();
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const T* from) {
    return hn::LoadU(d, from);
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V lanes, T* to) {
    hn::StoreU(lanes, d, to);
  }
};

template <class D>
using Bits32 = hn::RebindToUnsigned<D>;
template <class D>
using Bits16 = hn::Rebind<uint16_t, D>;

/// The lower 16 bits of lanes that are below 2^16.
template <class D, class V>
HWY_INLINE hn::Vec<Bits16<D>> low_halves(D, V bits) {
  const hn::RebindToSigned<D> signed_lanes;
  return hn::DemoteTo(Bits16<D>(), hn::BitCast(signed_lanes, bits));
}

struct Bfloat16 {
  using Element = uint16_t;
  using Scalar = float;
  static constexpr bool kUnrolled = false;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint16_t* from) {
    const Bits32<D> bits;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(Bits16<D>(), from))));
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V lanes, uint16_t* to) {
    const Bits32<D> bits;
    auto whole = hn::BitCast(bits, lanes);
    auto upper = hn::ShiftRight<16>(whole);
    auto odd = hn::And(upper, hn::Set(bits, 1));
    auto rounded = hn::ShiftRight<16>(hn::Add(whole, hn::Add(odd, hn::Set(bits, 0x7fff))));
    // Rounding could carry a NaN into the sign bit, so a NaN is made quiet instead.
    auto quiet = hn::Or(upper, hn::Set(bits, 0x40));
    auto is_nan = hn::RebindMask(bits, hn::IsNaN(lanes));
    hn::StoreU(low_halves(d, hn::IfThenElse(is_nan, quiet, rounded)), Bits16<D>(), to);
  }
};

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
struct Float16 {
  using Element = uint16_t;
  using Scalar = float;
  static constexpr bool kUnrolled = false;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint16_t* from) {
    const hn::Rebind<hwy::float16_t, D> halves;
    return hn::PromoteTo(d, hn::BitCast(halves, hn::LoadU(Bits16<D>(), from)));
  }
  template <class D, class V>
  static HWY_INLINE void store(D, V lanes, uint16_t* to) {
    const hn::Rebind<hwy::float16_t, D> halves;
    hn::StoreU(hn::BitCast(Bits16<D>(), hn::DemoteTo(halves, lanes)), Bits16<D>(), to);
  }
};
#else
constexpr uint32_t kSignOf16 = 0x8000;
constexpr uint32_t kInfinityOf16 = 0x7c00;
constexpr uint32_t kRebias = 127 - 15;  // difference of the exponent biases
constexpr uint32_t kInfinityOf32 = 0x7f800000;
constexpr uint32_t kLeastNormal = (kRebias + 1) << 23;      // 2^-14 as float32
constexpr uint32_t kBeyond16 = (kRebias + 31) << 23;        // 2^16 as float32
constexpr uint32_t kSubnormalMagic = (kRebias + 14) << 23;  // 1/2, whose last bit is 2^-24

struct Float16 {
  using Element = uint16_t;
  using Scalar = float;
  static constexpr bool kUnrolled = false;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint16_t* from) {
    const Bits32<D> bits;
    auto half = hn::PromoteTo(bits, hn::LoadU(Bits16<D>(), from));
    auto magnitude = hn::And(half, hn::Set(bits, kSignOf16 - 1));
    auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(bits, kSignOf16)));
    auto shifted = hn::ShiftLeft<13>(magnitude);
    auto normal = hn::Add(shifted, hn::Set(bits, kRebias << 23));
    auto special = hn::Or(shifted, hn::Set(bits, kInfinityOf32));
    // Below 2^-14: set the exponent of 2^-14, then subtract the implicit bit exactly.
    auto least = hn::Set(bits, kLeastNormal);
    auto subnormal =
        hn::BitCast(bits, hn::Sub(hn::BitCast(d, hn::Or(shifted, least)), hn::BitCast(d, least)));
    auto is_subnormal = hn::Lt(to_signed(bits, magnitude), hn::Set(Signed<D>(), 0x400));
    auto is_special = hn::Gt(to_signed(bits, magnitude),
                             hn::Set(Signed<D>(), static_cast<int32_t>(kInfinityOf16) - 1));
    auto value = hn::IfThenElse(hn::RebindMask(bits, is_subnormal), subnormal,
                                hn::IfThenElse(hn::RebindMask(bits, is_special), special, normal));
    return hn::BitCast(d, hn::Or(value, sign));
  }

  template <class D, class V>
  static HWY_INLINE void store(D d, V lanes, uint16_t* to) {
    const Bits32<D> bits;
    auto whole = hn::BitCast(bits, lanes);
    auto magnitude = hn::And(whole, hn::Set(bits, 0x7fffffff));
    auto sign = hn::ShiftRight<16>(hn::Xor(whole, magnitude));
    // The addition of 1/2 rounds at 2^-24, which is the last place of a subnormal.
    auto magic = hn::Set(bits, kSubnormalMagic);
    auto subnormal = hn::Sub(
        hn::BitCast(bits, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, magic))), magic);
    auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(bits, 1));
    auto rounding = hn::Add(odd, hn::Set(bits, 0xfff));
    auto normal =
        hn::ShiftRight<13>(hn::Add(hn::Sub(magnitude, hn::Set(bits, kRebias << 23)), rounding));
    auto nan = hn::Or(hn::Set(bits, kInfinityOf16 | 0x200),
                      hn::And(hn::ShiftRight<13>(magnitude), hn::Set(bits, 0x3ff)));
    auto is_nan = hn::RebindMask(bits, hn::IsNaN(lanes));
    auto special = hn::IfThenElse(is_nan, nan, hn::Set(bits, kInfinityOf16));
    auto is_subnormal = hn::Lt(to_signed(bits, magnitude),
                               hn::Set(Signed<D>(), static_cast<int32_t>(kLeastNormal)));
    auto is_special = hn::Gt(to_signed(bits, magnitude),
                             hn::Set(Signed<D>(), static_cast<int32_t>(kBeyond16) - 1));
    auto value = hn::IfThenElse(hn::RebindMask(bits, is_subnormal), subnormal,
                                hn::IfThenElse(hn::RebindMask(bits, is_special), special, normal));
    hn::StoreU(low_halves(d, hn::Or(value, sign)), Bits16<D>(), to);
  }

 private:
  template <class D>
  using Signed = hn::RebindToSigned<D>;
  /// Magnitudes have no sign bit, so signed lanes compare them correctly.
  template <class D, class V>
  static HWY_INLINE hn::Vec<Signed<D>> to_signed(D, V bits) {
    return hn::BitCast(Signed<D>(), bits);
  }
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace ringcoll
HWY_AFTER_NAMESPACE();

#endif
