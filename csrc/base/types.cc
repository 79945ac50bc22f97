#include "base/types.h"

#include <array>

namespace ringcoll {
namespace {

struct TypeRow {
  const char* name;
  size_t bytes;
};

constexpr std::array<TypeRow, RC_DTYPE_COUNT> kTypes = {{
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"uint64", 8},
    {"int64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"bool", 1},
}};
constexpr std::array<const char*, RC_OP_COUNT> kOps = {"sum",     "average", "min",   "max",
                                                       "product", "bit_and", "bit_or"};
constexpr std::array<const char*, RC_COLLECTIVE_COUNT> kCollectives = {
    "allreduce", "allgather", "reduce_scatter", "broadcast", "reduce",
    "gather",    "scatter",   "alltoall",       "barrier"};

template <size_t N>
const char* lookup(const std::array<const char*, N>& names, size_t i) {
  return i < N ? names[i] : "?";
}

}  // namespace

size_t size_of(DataType dtype) { return kTypes.at(dtype).bytes; }
const char* name_of(DataType dtype) {
  return static_cast<size_t>(dtype) < kTypes.size() ? kTypes[dtype].name : "?";
}
const char* name_of(ReduceOp op) { return lookup(kOps, op); }
const char* name_of(Collective collective) { return lookup(kCollectives, collective); }

}  // namespace ringcoll
