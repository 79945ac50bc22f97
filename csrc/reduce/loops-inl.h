// The loops of the kernels, compiled once for each instruction set. A kernel combines a codec
// (codecs-inl.h) with an operation on lanes. Only kernels_*.cc include this file, after
// foreach_target.h.
//
// Each instruction set needs its own copy, so the include guard toggles with the target.
#if defined(RINGCOLL_REDUCE_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGCOLL_REDUCE_LOOPS_INL_H_
#undef RINGCOLL_REDUCE_LOOPS_INL_H_
#else
#define RINGCOLL_REDUCE_LOOPS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "reduce/codecs-inl.h"
#include "reduce/reduce.h"

HWY_BEFORE_NAMESPACE();
namespace ringcoll {
namespace HWY_NAMESPACE {

template <class Codec, class Op, class D>
HWY_INLINE void combine_at(D d, typename Codec::Element* out, const typename Codec::Element* left,
                           const typename Codec::Element* right, size_t at) {
  Codec::store(d, Op::apply(d, Codec::load(d, left + at), Codec::load(d, right + at)), out + at);
}

constexpr size_t kFourPages = 4 * 4096;

/// Combines four quarters of the range side by side, line by line, as fetch_bytes() reads memory
/// (reduce.h). Returns how many elements it has combined.
template <class Codec, class Op>
HWY_INLINE size_t combine_quarters(typename Codec::Element* out,
                                   const typename Codec::Element* left,
                                   const typename Codec::Element* right, size_t total) {
  constexpr size_t kLine = 64 / sizeof(typename Codec::Element);
  const hn::CappedTag<typename Codec::Scalar, kLine> d;
  const size_t quarter = total / (4 * kLine) * kLine;
  for (size_t line = 0; line < quarter; line += kLine)
    for (size_t first = line; first < 4 * quarter; first += quarter)
      for (size_t at = first; at < first + kLine; at += hn::Lanes(d))
        combine_at<Codec, Op>(d, out, left, right, at);
  return 4 * quarter;
}

// Elements left over by whole vectors go in steps of 16 bytes, then one by one. Calls of one
// element are common, and a detour over a buffer would cost more than the rest of the call.
// `kFromMemory` stands for Operands::kInMemory.
template <class Codec, class Op, bool kFromMemory = false>
void combine(void* out_bytes, const void* left_bytes, const void* right_bytes, int64_t count) {
  using Element = typename Codec::Element;
  using Scalar = typename Codec::Scalar;
  auto* out = static_cast<Element*>(out_bytes);
  auto* left = static_cast<const Element*>(left_bytes);
  auto* right = static_cast<const Element*>(right_bytes);
  const hn::ScalableTag<Scalar> whole;
  const hn::CappedTag<Scalar, 16 / sizeof(Scalar)> small;
  const hn::CappedTag<Scalar, 1> one;
  const size_t lanes = hn::Lanes(whole), few = hn::Lanes(small);
  const size_t total = static_cast<size_t>(count);
  size_t i = 0;
  if constexpr (Codec::kUnrolled) {
    if (kFromMemory && total * sizeof(Element) >= kFourPages)
      i = combine_quarters<Codec, Op>(out, left, right, total);
    for (; i + 4 * lanes <= total; i += 4 * lanes) {
      combine_at<Codec, Op>(whole, out, left, right, i);
      combine_at<Codec, Op>(whole, out, left, right, i + lanes);
      combine_at<Codec, Op>(whole, out, left, right, i + 2 * lanes);
      combine_at<Codec, Op>(whole, out, left, right, i + 3 * lanes);
    }
  }
  for (; i + lanes <= total; i += lanes) combine_at<Codec, Op>(whole, out, left, right, i);
  for (; i + few <= total; i += few) combine_at<Codec, Op>(small, out, left, right, i);
  for (; i < total; i++) combine_at<Codec, Op>(one, out, left, right, i);
}

template <class Codec, class D>
HWY_INLINE void scale_at(D d, typename Codec::Element* out, const typename Codec::Element* in,
                         typename Codec::Scalar factor, size_t at) {
  Codec::store(d, hn::Mul(Codec::load(d, in + at), hn::Set(d, factor)), out + at);
}

/// Scales floating-point types, in the type of the lanes.
template <class Codec>
void scale(void* out_bytes, const void* in_bytes, double factor, int64_t count) {
  using Element = typename Codec::Element;
  using Scalar = typename Codec::Scalar;
  auto* out = static_cast<Element*>(out_bytes);
  auto* in = static_cast<const Element*>(in_bytes);
  const hn::ScalableTag<Scalar> whole;
  const hn::CappedTag<Scalar, 1> one;
  const size_t lanes = hn::Lanes(whole);
  const size_t total = static_cast<size_t>(count);
  const Scalar by = static_cast<Scalar>(factor);
  size_t i = 0;
  for (; i + lanes <= total; i += lanes) scale_at<Codec>(whole, out, in, by, i);
  for (; i < total; i++) scale_at<Codec>(one, out, in, by, i);
}

struct Sum {
  template <class D, class V>
  static HWY_INLINE V apply(D, V left, V right) {
    return hn::Add(left, right);
  }
};
struct Product {
  template <class D, class V>
  static HWY_INLINE V apply(D, V left, V right) {
    return hn::Mul(left, right);
  }
};

/// Makes the minimum or maximum of floats NaN if an operand is NaN; the left NaN wins. Without it,
/// the result for NaN would depend on the instruction set.
template <class V>
HWY_INLINE V or_nan(V result, V left, V right) {
  return hn::IfThenElse(hn::IsNaN(left), left, hn::IfThenElse(hn::IsNaN(right), right, result));
}
struct FloatMin {
  template <class D, class V>
  static HWY_INLINE V apply(D, V left, V right) {
    return or_nan(hn::Min(left, right), left, right);
  }
};
struct FloatMax {
  template <class D, class V>
  static HWY_INLINE V apply(D, V left, V right) {
    return or_nan(hn::Max(left, right), left, right);
  }
};
struct IntegerMin {
  template <class D, class V>
  static HWY_INLINE V apply(D, V left, V right) {
    return hn::Min(left, right);
  }
};
struct IntegerMax {
  template <class D, class V>
  static HWY_INLINE V apply(D, V left, V right) {
    return hn::Max(left, right);
  }
};
struct BitAnd {
  template <class D, class V>
  static HWY_INLINE V apply(D, V left, V right) {
    return hn::And(left, right);
  }
};
struct BitOr {
  template <class D, class V>
  static HWY_INLINE V apply(D, V left, V right) {
    return hn::Or(left, right);
  }
};

/// The kernel of a floating-point type; null if the type does not have the operation.
template <class Codec, bool kFromMemory = false>
CombineKernel float_combine(ReduceOp op) {
  switch (op) {
    case RC_SUM:
    case RC_AVERAGE:
      return combine<Codec, Sum, kFromMemory>;
    case RC_PRODUCT:
      return combine<Codec, Product, kFromMemory>;
    case RC_MIN:
      return combine<Codec, FloatMin, kFromMemory>;
    case RC_MAX:
      return combine<Codec, FloatMax, kFromMemory>;
    case RC_BIT_AND:
    case RC_BIT_OR:
      break;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace ringcoll
HWY_AFTER_NAMESPACE();

#endif
