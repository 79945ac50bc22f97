// The kernels of each group of types, for the instruction set found at run time. Private to
// reduce/.
#pragma once

#include "reduce/reduce.h"

namespace ringcoll {

/// Null if the type does not have the operation, or belongs to another group.
CombineKernel float_combine_kernel(DataType dtype, ReduceOp op, Operands operands);
CombineKernel half_combine_kernel(DataType dtype, ReduceOp op);
CombineKernel integer_combine_kernel(DataType dtype, ReduceOp op);
/// Null if the type belongs to another group.
ScaleKernel float_scale_kernel(DataType dtype);
ScaleKernel half_scale_kernel(DataType dtype);
ScaleKernel integer_scale_kernel(DataType dtype);

}  // namespace ringcoll
