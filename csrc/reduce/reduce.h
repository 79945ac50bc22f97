// Element-wise kernels: dtype × op. Pure; SIMD (Google Highway, dispatched at run time) lives only
// here.
//
// 16-bit floats are combined in float32 and rounded to nearest even after every combination.
// Integer sums and products wrap. bool: sum and max are "or", product and min are "and", any
// non-zero byte is true. float min/max: a NaN in either operand gives a NaN. Pointers need no
// alignment beyond that of one byte; `out` may equal `left` or `right`, other overlaps are not
// allowed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace ringcoll {

/// out[i] = left[i] op right[i]. The order of the operands is part of the result (NaN payloads):
/// callers pass the lower rank's as `left`.
using CombineKernel = void (*)(void* out, const void* left, const void* right, int64_t count);
/// out[i] = in[i] * factor. Integers and bool: multiplied in double, truncated towards zero and
/// saturated, a NaN gives 0; but if the factor is the double nearest to 1/k (an average), divided
/// by k exactly, as 49 * (1/49) is less than 1 in double. 16-bit floats: multiplied in float32;
/// float32: by the factor rounded to float32; float64: in double.
using ScaleKernel = void (*)(void* out, const void* in, double factor, int64_t count);

/// Where the operands of a combination are: what lies in memory is read from four places at a time
/// (docs/design.md, "Copies"). Results are the same.
enum class Operands : uint8_t { kInCaches, kInMemory };

/// The kernel; throws Error(kInvalidArgument) for an op that the type does not have (bit ops on
/// floats). RC_AVERAGE combines as RC_SUM.
CombineKernel combine_kernel(DataType dtype, ReduceOp op, Operands operands = Operands::kInCaches);
ScaleKernel scale_kernel(DataType dtype);

/// copy_bytes() (base/copy.h) for a source that is in no cache: it is read from four pages at a
/// time, which some processors do faster and others do not.
void fetch_bytes(void* to, const void* from, size_t bytes);
/// The same for a destination that is in no cache and not soon read, such as the output of a call
/// larger than the caches: stores that bypass them. Not for the arena, which a peer reads; nor for
/// what was just read, which is thrown out of the caches first, at a greater cost than it spares.
void stream_bytes(void* to, const void* from, size_t bytes);

/// The instruction set in use: "AVX3", "NEON", …
const char* simd_target();

}  // namespace ringcoll
