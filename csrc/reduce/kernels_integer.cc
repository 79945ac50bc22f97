// Kernels for integers of 8 to 64 bits, and for bool.
#include "reduce/kernels.h"
#include "reduce/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/kernels_integer.cc"
#include "hwy/foreach_target.h"
#include "reduce/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringcoll {
namespace HWY_NAMESPACE {
namespace {

/// 8-bit elements in 16-bit lanes, since no instruction set multiplies bytes.
struct WidenedByte {
  using Element = uint8_t;
  using Scalar = uint16_t;
  static constexpr bool kUnrolled = false;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t* from) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint8_t, D>(), from));
  }
  template <class D, class V>
  static HWY_INLINE void store(D d, V lanes, uint8_t* to) {
    const hn::Rebind<uint8_t, D> bytes;
    const hn::RebindToSigned<D> signed_lanes;
    auto low = hn::And(lanes, hn::Set(d, 0xff));
    hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(signed_lanes, low)), bytes, to);
  }
};

#if HWY_TARGET == HWY_SCALAR
using Product64 = Product;
#else
/// 64-bit products modulo 2^64 from 32-bit ones. Highway 1.0.3 does not have them on all targets.
struct Product64 {
  template <class D, class V>
  static HWY_INLINE V apply(D, V left, V right) {
    const hn::Repartition<uint32_t, D> halves;
    auto low_left = hn::BitCast(halves, left);
    auto low_right = hn::BitCast(halves, right);
    auto high_left = hn::BitCast(halves, hn::ShiftRight<32>(left));
    auto high_right = hn::BitCast(halves, hn::ShiftRight<32>(right));
    auto cross = hn::Add(hn::MulEven(low_left, high_right), hn::MulEven(high_left, low_right));
    return hn::Add(hn::MulEven(low_left, low_right), hn::ShiftLeft<32>(cross));
  }
};

#endif

// Any byte but 0 is true. Results are 0 or 1.
struct LogicalOr {
  template <class D, class V>
  static HWY_INLINE V apply(D d, V left, V right) {
    return hn::Min(hn::Or(left, right), hn::Set(d, 1));
  }
};
struct LogicalAnd {
  template <class D, class V>
  static HWY_INLINE V apply(D d, V left, V right) {
    return hn::Min(hn::Min(left, right), hn::Set(d, 1));
  }
};

/// Sums, products and bit operations wrap, so they are those of the unsigned type.
template <typename T, class ProductCodec, class ProductOp>
CombineKernel integer_combine(ReduceOp op) {
  using Unsigned = Plain<hwy::MakeUnsigned<T>>;
  switch (op) {
    case RC_SUM:
    case RC_AVERAGE:
      return combine<Unsigned, Sum>;
    case RC_PRODUCT:
      return combine<ProductCodec, ProductOp>;
    case RC_MIN:
      return combine<Plain<T>, IntegerMin>;
    case RC_MAX:
      return combine<Plain<T>, IntegerMax>;
    case RC_BIT_AND:
      return combine<Unsigned, BitAnd>;
    case RC_BIT_OR:
      return combine<Unsigned, BitOr>;
  }
  return nullptr;
}

CombineKernel bool_combine(ReduceOp op) {
  switch (op) {
    case RC_SUM:
    case RC_AVERAGE:
    case RC_MAX:
    case RC_BIT_OR:
      return combine<Plain<uint8_t>, LogicalOr>;
    case RC_PRODUCT:
    case RC_MIN:
    case RC_BIT_AND:
      return combine<Plain<uint8_t>, LogicalAnd>;
  }
  return nullptr;
}

CombineKernel choose_combine(DataType dtype, ReduceOp op) {
  switch (dtype) {
    case RC_UINT8:
      return integer_combine<uint8_t, WidenedByte, Product>(op);
    case RC_INT8:
      return integer_combine<int8_t, WidenedByte, Product>(op);
    case RC_UINT16:
      return integer_combine<uint16_t, Plain<uint16_t>, Product>(op);
    case RC_INT16:
      return integer_combine<int16_t, Plain<uint16_t>, Product>(op);
    case RC_UINT32:
      return integer_combine<uint32_t, Plain<uint32_t>, Product>(op);
    case RC_INT32:
      return integer_combine<int32_t, Plain<uint32_t>, Product>(op);
    case RC_UINT64:
      return integer_combine<uint64_t, Plain<uint64_t>, Product64>(op);
    case RC_INT64:
      return integer_combine<int64_t, Plain<uint64_t>, Product64>(op);
    case RC_BOOL:
      return bool_combine(op);
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ringcoll
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringcoll {

HWY_EXPORT(choose_combine);

CombineKernel integer_combine_kernel(DataType dtype, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(choose_combine)(dtype, op);
}

}  // namespace ringcoll
#endif
