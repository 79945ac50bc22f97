// The kernels of each group of types, for the instruction set that was found at run time. For
// reduce/ only.
#pragma once

#include "reduce/reduce.h"

namespace ringcoll {

/// Null for an operation that the type does not have, or a type of another group.
CombineKernel float_combine_kernel(DataType dtype, ReduceOp op, Operands operands);
CombineKernel half_combine_kernel(DataType dtype, ReduceOp op);
CombineKernel integer_combine_kernel(DataType dtype, ReduceOp op);
/// Null for a type of another group.
ScaleKernel float_scale_kernel(DataType dtype);
ScaleKernel half_scale_kernel(DataType dtype);
ScaleKernel integer_scale_kernel(DataType dtype);

}  // namespace ringcoll
