// A collective call that check_call() has validated: the contents of an rc_call of the C ABI, all
// of them valid.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/collectives.h"
#include "base/types.h"
#include "transport/transport.h"

namespace ringcoll {

/// Borrows the caller's arrays. A scale that the caller left 0 is 1 here, and -0.0 is 0. RC_AVERAGE
/// keeps its `op`, and `postscale` contains the factor 1/size.
struct Call {
  Collective collective = RC_BARRIER;
  DataType dtype = RC_UINT8;
  ReduceOp op = RC_SUM;  // as the caller gave it, for signatures and texts
  Rank root = 0;
  std::span<const rc_buffer> buffers;
  std::span<const int64_t> counts;       // empty: each is buffers[0].count
  std::span<const int64_t> recv_counts;  // alltoall; empty: each is buffers[0].count
  double prescale = 1;
  double postscale = 1;
  double named_postscale = 1;  // as the caller gave it, for signatures and texts
  double timeout_s = 0;        // for all waits together; 0: each wait has the communicator's
  /// Calls with equal forms differ in their memory alone (CallCheck). 0: not known.
  uint64_t form = 0;

  bool is_vector() const { return traits_of(collective).is_vector(); }
  bool reduces() const { return traits_of(collective).reduces(); }
  bool has_data() const { return traits_of(collective).has_data(); }
  bool exchanges() const { return traits_of(collective).exchanges(); }
  /// True if all chunks have the same number of elements, and every rank knows that.
  bool has_equal_counts() const { return counts.empty(); }
  /// Elements of the vector, or of all chunks in `counts`.
  int64_t total() const;
  int64_t count_of(Rank rank) const { return counts.empty() ? buffers[0].count : counts[rank]; }
  int64_t recv_count_of(Rank rank) const {
    return recv_counts.empty() ? buffers[0].count : recv_counts[rank];
  }
};

/// The envelope of every message of a call: what all ranks must have alike. The receiver compares
/// it with the signature of its own call (Mismatch).
struct Signature {
  int64_t count = 0;      // elements of the call
  uint32_t sequence = 0;  // the call's number on this communicator, modulo 2^32
  uint32_t details = 0;   // a hash of Details; 0: all are defaults
  int32_t root = 0;
  uint8_t collective = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t reserved = 0;

  bool operator==(const Signature&) const = default;
};

/// What ranks must have alike, but a signature contains as a hash only. Used in texts of errors.
struct Details {
  double prescale = 1;
  double postscale = 1;  // without the 1/size of RC_AVERAGE
  std::string counts;    // "10, 20"; "": equal; "each rank's own": alltoall

  bool operator==(const Details&) const = default;
};

/// Called before the array of buffers is copied. Throws Error(kInvalidArgument).
void check_buffer_count(const rc_call& raw);
/// Precondition: `raw` has all fields of this library's rc_call (engine/caller_struct.h). Throws
/// Error(kInvalidArgument), which names the argument and the remedy.
Call check_call(const rc_call& raw, Rank rank, Rank size);

/// A check_call() for callers that mostly repeat one call with other memory. It recognizes such a
/// call, and marks it by Call::form, so that later code can reuse what it computed. One thread at a
/// time.
class CallCheck {
 public:
  CallCheck(Rank rank, Rank size) : rank_(rank), size_(size) {}
  /// The result is valid until the next call of this operator. It borrows the caller's arrays.
  const Call& operator()(const rc_call& raw);

 private:
  bool is_like_last(const rc_call& raw) const;
  bool lies_like_last(const rc_buffer& buffer) const;

  Rank rank_, size_;
  rc_call last_{};
  rc_buffer buffer_{};         // the only buffer of last_
  int64_t longest_bytes_ = 0;  // of the longer one of its input and output
  uint64_t forms_ = 0;
  Call call_;
};

/// True if one of two calls of this rank writes memory that the other reads or writes.
bool share_memory(const Call& a, const Call& b, Rank rank, Rank size);

/// The signature of a call. Its count is one that all ranks know alike: 0 for an alltoall with
/// counts.
Signature signature_of(const Call& call, Rank size, uint64_t sequence);
Details details_of(const Call& call);
/// Text such as "allreduce #41 of 1048576 float32, sum".
std::string describe(const Signature& signature);

}  // namespace ringcoll
