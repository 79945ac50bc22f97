// see the header
#include "reduce/reduce.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "reduce/kernels.h"

namespace ringcoll {
namespace {

/// The bits of some values of a type, in the lowest bytes.
struct Values {
  uint64_t one, largest, least, all_bits;
};

Values values_of(DataType dtype) {
  uint64_t all_bits = ~uint64_t{0} >> (64 - 8 * size_of(dtype)), sign = all_bits ^ (all_bits >> 1);
  switch (dtype) {
    case RC_BOOL:
      return {1, 1, 0, 1};
    case RC_FLOAT16:
      return {0x3c00, 0x7c00, 0xfc00, 0};
    case RC_BFLOAT16:
      return {0x3f80, 0x7f80, 0xff80, 0};
    case RC_FLOAT32:
      return {0x3f80'0000, 0x7f80'0000, 0xff80'0000, 0};
    case RC_FLOAT64:
      return {0x3ff0'0000'0000'0000, 0x7ff0'0000'0000'0000, 0xfff0'0000'0000'0000, 0};
    case RC_INT8:
    case RC_INT16:
    case RC_INT32:
    case RC_INT64:
      return {1, sign - 1, sign, all_bits};
    default:
      return {1, all_bits, 0, all_bits};
  }
}

uint64_t neutral_of(DataType dtype, ReduceOp op) {
  Values values = values_of(dtype);
  switch (op) {
    case RC_PRODUCT:
      return values.one;
    case RC_MIN:
      return values.largest;
    case RC_MAX:
      return values.least;
    case RC_BIT_AND:
      return values.all_bits;
    default:
      return 0;
  }
}

}  // namespace

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

void fill_neutral(DataType dtype, ReduceOp op, void* out, int64_t count) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t value = neutral_of(dtype, op);
  auto* bytes = static_cast<std::byte*>(out);
  for (int64_t i = 0; i < count; i++)
    std::memcpy(bytes + i * size_of(dtype), &value, size_of(dtype));
}

}  // namespace ringcoll
