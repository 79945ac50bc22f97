#include "base/types.h"

#include <array>

#include "base/collectives.h"

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
}  // namespace

size_t size_of(DataType dtype) { return kTypes.at(dtype).bytes; }
const char* name_of(DataType dtype) {
  return static_cast<size_t>(dtype) < kTypes.size() ? kTypes[dtype].name : "?";
}
const char* name_of(ReduceOp op) { return static_cast<size_t>(op) < kOps.size() ? kOps[op] : "?"; }
const char* name_of(Collective collective) {
  bool exists = static_cast<size_t>(collective) < kCollectiveTraits.size();
  return exists ? traits_of(collective).name : "?";
}

}  // namespace ringcoll
