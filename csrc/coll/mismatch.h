// The error of ranks that disagree about a call: it names what differs, and both sides.
#pragma once

#include <optional>

#include "base/error.h"
#include "coll/call.h"

namespace ringcoll {

/// A call as a rank has made it.
struct Made {
  Rank rank = kNobody;
  Signature signature;
  std::optional<Details> details;  // none: all that is known of them is their hash
};

/// "rank 1 runs allreduce #7 of 4 float32, sum, postscale 2"; `details` name those of the other,
/// too, where they differ.
std::string describe(const Made& made, const Made& other);
/// Whether the two are the same call: but for their number, which says when.
bool are_alike(const Signature& a, const Signature& b);
/// Precondition: they differ. Blames `blamed`.
Error mismatch(const Made& a, const Made& b, Rank blamed);

/// What a rank sends another in an alltoall, or is to receive, in elements.
struct Share {
  Rank rank = kNobody;
  int64_t count = 0;
};
/// Precondition: the counts differ.
Error split_mismatch(const Signature& alltoall, Share sent, Share expected, Rank blamed);

}  // namespace ringcoll
