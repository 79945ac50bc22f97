// Kernels for float16 and bfloat16, whose lanes are float32.
#include "reduce/kernels.h"
#include "reduce/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/kernels_half.cc"
#include "hwy/foreach_target.h"
#include "reduce/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringcoll {
namespace HWY_NAMESPACE {
namespace {

CombineKernel choose_combine(DataType dtype, ReduceOp op) {
  if (dtype == RC_FLOAT16) return float_combine<Float16>(op);
  if (dtype == RC_BFLOAT16) return float_combine<Bfloat16>(op);
  return nullptr;
}

ScaleKernel choose_scale(DataType dtype) {
  if (dtype == RC_FLOAT16) return scale<Float16>;
  if (dtype == RC_BFLOAT16) return scale<Bfloat16>;
  return nullptr;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ringcoll
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringcoll {

HWY_EXPORT(choose_combine);
HWY_EXPORT(choose_scale);

CombineKernel half_combine_kernel(DataType dtype, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(choose_combine)(dtype, op);
}
ScaleKernel half_scale_kernel(DataType dtype) { return HWY_DYNAMIC_DISPATCH(choose_scale)(dtype); }

}  // namespace ringcoll
#endif
