// One pass over value, state and push for each update.
#include "rules/kernels.h"

#include "reduce/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rules/kernels.cc"
#include "hwy/foreach_target.h"
#include "reduce/codecs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringcoll {
namespace HWY_NAMESPACE {
namespace {

/// A NaN without sign or payload. Processors disagree about those of a NaN that they compute.
template <class D>
HWY_INLINE hn::Vec<D> plain_nan(D d) {
  const hn::RebindToUnsigned<D> bits;
  using Bits = hn::TFromD<decltype(bits)>;
  constexpr Bits kQuietNan =
      sizeof(Bits) == 8 ? static_cast<Bits>(0x7ff8'0000'0000'0000) : static_cast<Bits>(0x7fc0'0000);
  return hn::BitCast(d, hn::Set(bits, kQuietNan));
}

template <class D, class V>
HWY_INLINE V with_plain_nan(D d, V lanes) {
  return hn::IfThenElse(hn::IsNaN(lanes), plain_nan(d), lanes);
}

// An operation changes the lanes of value and state by those of a push. It has kSlots arrays of
// state, and its members are scalars, since vectors of some instruction sets cannot be members.

template <typename T>
struct Sum {
  static constexpr size_t kSlots = 0;
  template <class D, class V>
  HWY_INLINE void apply(D, V push, V& value, V&, V&) const {
    value = hn::Add(value, push);
  }
};

template <typename T>
struct Assign {
  static constexpr size_t kSlots = 0;
  template <class D, class V>
  HWY_INLINE void apply(D, V push, V& value, V&, V&) const {
    value = push;
  }
};

/// The gradient with the weight decay that is added to it.
template <class D, class V>
HWY_INLINE V decayed(D d, V gradient, V value, hn::TFromD<D> weight_decay) {
  if (weight_decay == 0) return gradient;  // 0 times an infinite value would be NaN
  return hn::Add(gradient, hn::Mul(hn::Set(d, weight_decay), value));
}

template <typename T, bool kMomentum>
struct Sgd {
  static constexpr size_t kSlots = kMomentum ? 1 : 0;

  explicit Sgd(const SgdScalars& scalars)
      : step_(static_cast<T>(-scalars.lr)),
        momentum_(static_cast<T>(scalars.momentum)),
        undamped_(static_cast<T>(scalars.undamped)),
        weight_decay_(static_cast<T>(scalars.weight_decay)),
        is_first_(scalars.is_first),
        nesterov_(scalars.nesterov),
        maximize_(scalars.maximize) {}

  template <class D, class V>
  HWY_INLINE void apply(D d, V push, V& value, V& buffer, V&) const {
    auto gradient = push;
    if (maximize_) gradient = hn::Neg(gradient);
    gradient = decayed(d, gradient, value, weight_decay_);
    if constexpr (kMomentum) gradient = with_momentum(d, gradient, buffer);
    value = hn::Add(value, hn::Mul(hn::Set(d, step_), gradient));
  }

 private:
  template <class D, class V>
  HWY_INLINE V with_momentum(D d, V gradient, V& buffer) const {
    const auto momentum = hn::Set(d, momentum_);
    if (is_first_)
      buffer = gradient;
    else
      buffer = hn::Add(hn::Mul(buffer, momentum), hn::Mul(hn::Set(d, undamped_), gradient));
    if (!nesterov_) return buffer;
    return hn::Add(gradient, hn::Mul(momentum, buffer));
  }

  T step_, momentum_, undamped_, weight_decay_;
  bool is_first_, nesterov_, maximize_;
};

template <typename T>
struct Adagrad {
  static constexpr size_t kSlots = 1;

  explicit Adagrad(const AdagradScalars& scalars)
      : step_(static_cast<T>(-scalars.lr)),
        weight_decay_(static_cast<T>(scalars.weight_decay)),
        eps_(static_cast<T>(scalars.eps)) {}

  template <class D, class V>
  HWY_INLINE void apply(D d, V push, V& value, V& sum, V&) const {
    const auto gradient = decayed(d, push, value, weight_decay_);
    sum = hn::Add(sum, hn::Mul(gradient, gradient));
    const auto root = hn::Add(hn::Sqrt(sum), hn::Set(d, eps_));
    value = hn::Add(value, hn::Div(hn::Mul(hn::Set(d, step_), gradient), root));
  }

 private:
  T step_, weight_decay_, eps_;
};

template <typename T>
struct Adam {
  static constexpr size_t kSlots = 2;

  explicit Adam(const AdamScalars& scalars)
      : keep_(static_cast<T>(scalars.keep)),
        weight_decay_(static_cast<T>(scalars.weight_decay)),
        nearer_(static_cast<T>(scalars.one_less_beta1)),
        beta2_(static_cast<T>(scalars.beta2)),
        one_less_beta2_(static_cast<T>(scalars.one_less_beta2)),
        root_of_correction2_(static_cast<T>(scalars.root_of_correction2)),
        eps_(static_cast<T>(scalars.eps)),
        step_(static_cast<T>(-scalars.step_size)) {}

  template <class D, class V>
  HWY_INLINE void apply(D d, V push, V& value, V& mean, V& square) const {
    if (keep_ != 1) value = hn::Mul(value, hn::Set(d, keep_));
    const auto gradient = decayed(d, push, value, weight_decay_);
    mean = moved(d, mean, gradient);
    square = hn::Add(hn::Mul(square, hn::Set(d, beta2_)),
                     hn::Mul(hn::Mul(hn::Set(d, one_less_beta2_), gradient), gradient));
    const auto root = hn::Div(hn::Sqrt(square), hn::Set(d, root_of_correction2_));
    const auto divisor = hn::Add(root, hn::Set(d, eps_));
    value = hn::Add(value, hn::Div(hn::Mul(hn::Set(d, step_), mean), divisor));
  }

 private:
  /// The mean, moved towards the gradient by the share `nearer_` of their distance, as torch's lerp
  /// does: beginning at the end that is nearer.
  template <class D, class V>
  HWY_INLINE V moved(D d, V mean, V gradient) const {
    const auto distance = hn::Sub(gradient, mean);
    if (nearer_ < T{0.5}) return hn::Add(mean, hn::Mul(hn::Set(d, nearer_), distance));
    return hn::Sub(gradient, hn::Mul(distance, hn::Set(d, T{1} - nearer_)));
  }

  T keep_, weight_decay_, nearer_, beta2_, one_less_beta2_, root_of_correction2_, eps_, step_;
};

template <typename T>
struct Average {
  static constexpr size_t kSlots = 0;

  explicit Average(double fraction) : fraction_(static_cast<T>(fraction)) {}

  template <class D, class V>
  HWY_INLINE void apply(D d, V push, V& value, V&, V&) const {
    value = hn::Add(value, hn::Mul(hn::Sub(push, value), hn::Set(d, fraction_)));
  }

 private:
  T fraction_;
};

template <class Value, class Pushed, class Op, class D>
HWY_INLINE void update_at(D d, const Op& op, const Arrays& arrays, size_t at) {
  using Scalar = typename Value::Scalar;
  auto* place = static_cast<typename Value::Element*>(arrays.value) + at;
  auto* first = static_cast<Scalar*>(arrays.state[0]);
  auto* second = static_cast<Scalar*>(arrays.state[1]);
  const auto push = Pushed::load(d, static_cast<const typename Pushed::Element*>(arrays.push) + at);
  auto value = Value::load(d, place);
  auto state = hn::Zero(d), more_state = hn::Zero(d);
  if constexpr (Op::kSlots > 0) state = hn::LoadU(d, first + at);
  if constexpr (Op::kSlots > 1) more_state = hn::LoadU(d, second + at);
  op.apply(d, push, value, state, more_state);
  Value::store(d, with_plain_nan(d, value), place);
  if constexpr (Op::kSlots > 0) hn::StoreU(with_plain_nan(d, state), d, first + at);
  if constexpr (Op::kSlots > 1) hn::StoreU(with_plain_nan(d, more_state), d, second + at);
}

/// The arrays are passed by value, since stores through a reference's pointers could change them.
template <class Value, class Pushed, class Op>
void update(const Op& op, const Arrays arrays) {
  using Scalar = typename Value::Scalar;
  const hn::ScalableTag<Scalar> whole;
  const hn::CappedTag<Scalar, 1> one;
  const size_t lanes = hn::Lanes(whole), total = static_cast<size_t>(arrays.count);
  size_t i = 0;
  for (; i + lanes <= total; i += lanes) update_at<Value, Pushed>(whole, op, arrays, i);
  for (; i < total; i++) update_at<Value, Pushed>(one, op, arrays, i);
}

template <class Value, class Op>
void update_half(const Op& op, const Arrays& arrays) {
  if (arrays.push_dtype == RC_FLOAT32)
    update<Value, Plain<float>>(op, arrays);
  else
    update<Value, Value>(op, arrays);
}

/// Runs the operation of the lanes' type that `make` returns for a number of that type.
template <class Make>
void with_types(const Arrays& arrays, Make make) {
  switch (arrays.dtype) {
    case RC_FLOAT16:
      return update_half<Float16>(make(float{}), arrays);
    case RC_BFLOAT16:
      return update_half<Bfloat16>(make(float{}), arrays);
    case RC_FLOAT64:
      return update<Plain<double>, Plain<double>>(make(double{}), arrays);
    default:
      return update<Plain<float>, Plain<float>>(make(float{}), arrays);
  }
}

void sum(const Arrays& arrays) {
  with_types(arrays, []<typename T>(T) { return Sum<T>(); });
}

void assign(const Arrays& arrays) {
  with_types(arrays, []<typename T>(T) { return Assign<T>(); });
}

void sgd(const Arrays& arrays, const SgdScalars& scalars) {
  if (scalars.momentum == 0)
    with_types(arrays, [&]<typename T>(T) { return Sgd<T, false>(scalars); });
  else
    with_types(arrays, [&]<typename T>(T) { return Sgd<T, true>(scalars); });
}

void adagrad(const Arrays& arrays, const AdagradScalars& scalars) {
  with_types(arrays, [&]<typename T>(T) { return Adagrad<T>(scalars); });
}

void adam(const Arrays& arrays, const AdamScalars& scalars) {
  with_types(arrays, [&]<typename T>(T) { return Adam<T>(scalars); });
}

void average(const Arrays& arrays, double fraction) {
  with_types(arrays, [&]<typename T>(T) { return Average<T>(fraction); });
}

template <class Codec>
int64_t nans(const void* data, int64_t count) {
  using Scalar = typename Codec::Scalar;
  const auto* elements = static_cast<const typename Codec::Element*>(data);
  const hn::ScalableTag<Scalar> whole;
  const hn::CappedTag<Scalar, 1> one;
  const size_t lanes = hn::Lanes(whole), total = static_cast<size_t>(count);
  size_t i = 0, found = 0;
  for (; i + lanes <= total; i += lanes)
    found += hn::CountTrue(whole, hn::IsNaN(Codec::load(whole, elements + i)));
  for (; i < total; i++) found += hn::CountTrue(one, hn::IsNaN(Codec::load(one, elements + i)));
  return static_cast<int64_t>(found);
}

int64_t nans_of(DataType dtype, const void* data, int64_t count) {
  switch (dtype) {
    case RC_FLOAT16:
      return nans<Float16>(data, count);
    case RC_BFLOAT16:
      return nans<Bfloat16>(data, count);
    case RC_FLOAT32:
      return nans<Plain<float>>(data, count);
    case RC_FLOAT64:
      return nans<Plain<double>>(data, count);
    default:
      return 0;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ringcoll
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringcoll {

HWY_EXPORT(sum);
HWY_EXPORT(assign);
HWY_EXPORT(sgd);
HWY_EXPORT(adagrad);
HWY_EXPORT(adam);
HWY_EXPORT(average);
HWY_EXPORT(nans_of);

void update_sum(const Arrays& arrays) { HWY_DYNAMIC_DISPATCH(sum)(arrays); }
void update_assign(const Arrays& arrays) { HWY_DYNAMIC_DISPATCH(assign)(arrays); }
void update_sgd(const Arrays& arrays, const SgdScalars& scalars) {
  HWY_DYNAMIC_DISPATCH(sgd)(arrays, scalars);
}
void update_adagrad(const Arrays& arrays, const AdagradScalars& scalars) {
  HWY_DYNAMIC_DISPATCH(adagrad)(arrays, scalars);
}
void update_adam(const Arrays& arrays, const AdamScalars& scalars) {
  HWY_DYNAMIC_DISPATCH(adam)(arrays, scalars);
}
void update_average(const Arrays& arrays, double fraction) {
  HWY_DYNAMIC_DISPATCH(average)(arrays, fraction);
}
int64_t count_nan(DataType dtype, const void* data, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(nans_of)(dtype, data, count);
}

}  // namespace ringcoll
#endif
