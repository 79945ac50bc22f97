// Kernels for float32 and float64.
#include "reduce/kernels.h"
#include "reduce/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/kernels_float.cc"
#include "hwy/foreach_target.h"
#include "reduce/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringcoll {
namespace HWY_NAMESPACE {
namespace {

template <bool kFromMemory>
CombineKernel choose(DataType dtype, ReduceOp op) {
  if (dtype == RC_FLOAT32) return float_combine<Plain<float>, kFromMemory>(op);
  if (dtype == RC_FLOAT64) return float_combine<Plain<double>, kFromMemory>(op);
  return nullptr;
}

CombineKernel choose_combine(DataType dtype, ReduceOp op, Operands operands) {
  return operands == Operands::kInMemory ? choose<true>(dtype, op) : choose<false>(dtype, op);
}

ScaleKernel choose_scale(DataType dtype) {
  if (dtype == RC_FLOAT32) return scale<Plain<float>>;
  if (dtype == RC_FLOAT64) return scale<Plain<double>>;
  return nullptr;
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ringcoll
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringcoll {

HWY_EXPORT(choose_combine);
HWY_EXPORT(choose_scale);
HWY_EXPORT(target_name);

CombineKernel float_combine_kernel(DataType dtype, ReduceOp op, Operands operands) {
  return HWY_DYNAMIC_DISPATCH(choose_combine)(dtype, op, operands);
}
ScaleKernel float_scale_kernel(DataType dtype) { return HWY_DYNAMIC_DISPATCH(choose_scale)(dtype); }
const char* simd_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace ringcoll
#endif
