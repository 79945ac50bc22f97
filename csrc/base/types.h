// The words that every layer shares: ranks, ranges of elements, element types and operations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ringcoll/ringcoll.h"

namespace ringcoll {

/// A rank of a communicator, 0 … size-1; kNobody where a step has no peer.
using Rank = int32_t;
inline constexpr Rank kNobody = -1;

/// `count` elements from `first`; never bytes. 64 bits, so that 2^31 elements need no special case.
struct Range {
  int64_t first = 0;
  int64_t count = 0;

  int64_t end() const { return first + count; }
  bool empty() const { return count == 0; }
  bool operator==(const Range&) const = default;
};

inline bool overlap(Range a, Range b) {
  return a.first < b.end() && b.first < a.end() && !a.empty() && !b.empty();
}

/// Element types, operations and collectives are those of the C ABI; there is no second set of
/// names.
using DataType = rc_dtype;
using ReduceOp = rc_op;
using Collective = rc_collective;

/// Bytes of one element.
size_t size_of(DataType dtype);
/// Names as users write them: "float32", "sum", "allreduce". "?" for a value out of range.
const char* name_of(DataType dtype);
const char* name_of(ReduceOp op);
const char* name_of(Collective collective);

}  // namespace ringcoll
