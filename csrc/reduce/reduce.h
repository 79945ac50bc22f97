// Element-wise kernels for each type and operation. They are pure, and use Google Highway, which
// finds the instruction set at run time.
//
// 16-bit floats are combined in float32 and rounded to nearest even after every combination.
// Integer sums and products wrap. For bool, any non-zero byte is true, sum and max are "or", and
// product and min are "and". The minimum or maximum of floats is NaN if an operand is NaN. Pointers
// need no alignment. `out` may equal `left` or `right`; other overlaps are not allowed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "reduce/stream.h"

namespace ringcoll {

/// out[i] = left[i] op right[i]. The order of the operands can change the result (NaN payloads), so
/// callers pass the lower rank's operand as `left`.
using CombineKernel = void (*)(void* out, const void* left, const void* right, int64_t count);
/// out[i] = in[i] * factor. Integers and bool are multiplied in double, truncated towards zero and
/// saturated; NaN becomes 0. If the factor is the double nearest to 1/k (an average) for an integer
/// k of at most 1e9, they are divided by k exactly: 49 * (1/49) is less than 1 in double. 16-bit
/// floats are multiplied in float32, float32 by the factor rounded to float32, float64 in double.
using ScaleKernel = void (*)(void* out, const void* in, double factor, int64_t count);

/// Where the operands of a combination are. float32 and float64 operands in memory are read from
/// four places at a time (docs/design.md, "Copies"). The results are the same.
enum class Operands : uint8_t { kInCaches, kInMemory };

/// Throws Error(kInvalidArgument) if the type does not have the operation, such as bit operations
/// on floats, or does not exist. RC_AVERAGE combines as RC_SUM; its caller divides.
CombineKernel combine_kernel(DataType dtype, ReduceOp op, Operands operands = Operands::kInCaches);
ScaleKernel scale_kernel(DataType dtype);
/// Fills `out` with the value that changes no other when it is combined with it. Precondition: the
/// type has the operation, which is not RC_AVERAGE.
void fill_neutral(DataType dtype, ReduceOp op, void* out, int64_t count);

/// The instruction set in use, such as "AVX3" or "NEON".
const char* simd_target();

}  // namespace ringcoll
