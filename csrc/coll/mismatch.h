// The error of ranks that disagree about a call. It names what differs, and the values of both
// ranks.
#pragma once

#include <optional>

#include "base/error.h"
#include "coll/call.h"

namespace ringcoll {

/// A call that a rank has made.
struct Made {
  Rank rank = kNobody;
  Signature signature;
  std::optional<Details> details;  // none: only their hash is known
};

/// Text such as "rank 1 runs allreduce #7 of 4 float32, sum, postscale 2". It contains those
/// details that differ from `other`.
std::string describe(const Made& made, const Made& other);
/// Whether two signatures are equal except for their sequence.
bool are_alike(const Signature& a, const Signature& b);
/// An error that blames `blamed`. Precondition: the calls differ.
Error mismatch(const Made& a, const Made& b, Rank blamed);

/// The elements that a rank sends to another in an alltoall, or expects from it.
struct Share {
  Rank rank = kNobody;
  int64_t count = 0;
};
/// The error of a pair. Precondition: the counts differ.
Error split_mismatch(const Signature& alltoall, Share sent, Share expected, Rank blamed);

}  // namespace ringcoll
