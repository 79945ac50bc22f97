// see the header
#include "reduce/reduce.h"

#include "base/error.h"
#include "reduce/kernels.h"

namespace ringcoll {

CombineKernel combine_kernel(DataType dtype, ReduceOp op, Operands operands) {
  if (CombineKernel kernel = float_combine_kernel(dtype, op, operands)) return kernel;
  for (auto choose : {half_combine_kernel, integer_combine_kernel})
    if (CombineKernel kernel = choose(dtype, op)) return kernel;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} has no {}; bit operations are for integers and bool", name_of(dtype),
                          name_of(op)));
}

ScaleKernel scale_kernel(DataType dtype) {
  for (auto choose : {float_scale_kernel, half_scale_kernel, integer_scale_kernel})
    if (ScaleKernel kernel = choose(dtype)) return kernel;
  throw Error(Code::kInvalidArgument, fmt::format("no element type {}", static_cast<int>(dtype)));
}

}  // namespace ringcoll
