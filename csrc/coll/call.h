// A collective call, checked: what the C ABI's rc_call says, in terms that cannot be wrong any
// more.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/collectives.h"
#include "base/types.h"
#include "transport/transport.h"

namespace ringcoll {

/// Borrows the caller's arrays. Scales are never 0 here; RC_AVERAGE is already a sum with 1/size in
/// postscale.
struct Call {
  Collective collective = RC_BARRIER;
  DataType dtype = RC_UINT8;
  ReduceOp op = RC_SUM;  // as the caller named it; for signatures and messages
  Rank root = 0;
  std::span<const rc_buffer> buffers;
  std::span<const int64_t> counts;       // empty: all equal to buffers[0].count
  std::span<const int64_t> recv_counts;  // alltoall; empty as above
  double prescale = 1;
  double postscale = 1;
  double named_postscale = 1;  // as the caller named it; for signatures and messages
  double timeout_s = 0;        // of all waits of the call together; 0: each has the communicator's
  /// Equal forms: the same call with other memory. 0: nothing is known (CallCheck).
  uint64_t form = 0;

  bool is_vector() const { return traits_of(collective).is_vector(); }
  bool reduces() const { return traits_of(collective).reduces(); }
  bool has_data() const { return traits_of(collective).has_data(); }
  bool exchanges() const { return traits_of(collective).exchanges(); }
  /// Of a collective with chunks: as many elements for each rank, and every rank knows that.
  bool has_equal_counts() const { return counts.empty(); }
  /// Elements of the vector; of chunk `rank`; that rank `rank` sends here (alltoall).
  int64_t total() const;
  int64_t count_of(Rank rank) const { return counts.empty() ? buffers[0].count : counts[rank]; }
  int64_t recv_count_of(Rank rank) const {
    return recv_counts.empty() ? buffers[0].count : recv_counts[rank];
  }
};

/// What every message says of the call it belongs to, as its envelope: all that ranks must have
/// alike. The receiver compares it with its own (Mismatch).
struct Signature {
  int64_t count = 0;      // the call's elements
  uint32_t sequence = 0;  // number of the call on this communicator, modulo 2^32
  uint32_t details = 0;   // a hash of the Details; 0: there are none
  int32_t root = 0;
  uint8_t collective = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t reserved = 0;

  bool operator==(const Signature&) const = default;
};

/// What ranks must have alike, and a signature has as a hash alone. For messages.
struct Details {
  double prescale = 1;
  double postscale = 1;  // as the caller named it
  std::string counts;    // "10, 20"; "" if they are equal, "each rank's own" of an alltoall

  bool operator==(const Details&) const = default;
};

/// Before the array of buffers is copied. Throws Error(kInvalidArgument).
void check_buffer_count(const rc_call& raw);
/// `raw` has all fields of this library's rc_call (engine/caller_struct.h). Throws
/// Error(kInvalidArgument) that names the argument and the remedy.
Call check_call(const rc_call& raw, Rank rank, Rank size);

/// check_call() for a caller who mostly makes the same call again, with other memory. It notices
/// that, and tells all that is worked out for a call (Call::form). One thread at a time.
class CallCheck {
 public:
  CallCheck(Rank rank, Rank size) : rank_(rank), size_(size) {}
  /// Valid until the next one. Borrows the caller's arrays, as a Call does.
  const Call& operator()(const rc_call& raw);

 private:
  bool is_like_last(const rc_call& raw) const;
  bool lies_like_last(const rc_buffer& buffer) const;

  Rank rank_, size_;
  rc_call last_{};
  rc_buffer buffer_{};         // its only one
  int64_t longest_bytes_ = 0;  // of its input and output
  uint64_t forms_ = 0;
  Call call_;
};

/// Whether one of two calls of this rank writes what the other reads or writes.
bool share_memory(const Call& a, const Call& b, Rank rank, Rank size);

/// What the messages of this call say. The count is one that all ranks know alike: 0 for alltoall
/// with counts.
Signature signature_of(const Call& call, Rank size, uint64_t sequence);
Details details_of(const Call& call);
/// "allreduce #41 of 1048576 float32, sum".
std::string describe(const Signature& signature);

}  // namespace ringcoll
