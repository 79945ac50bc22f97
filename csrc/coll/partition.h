// Maps the index space of schedules to the caller's memory, piece by piece.
//
// A piece is what one run of a schedule handles. The vector of, for example, an allreduce or a
// broadcast is one strip, which is cut into consecutive pieces. A chunked collective has one strip
// for each rank's chunk, in ring order. An alltoall has the strips to send, then those to receive.
// Piece k takes the k-th stretch of every strip. So a piece of a chunked collective is a small
// instance of the same collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coll/call.h"
#include "schedule/plan.h"
#include "transport/transport.h"

namespace ringcoll {

/// A stretch of a piece that is contiguous in the caller's memory. An address is null if the
/// stretch has no input, or no output.
struct Fragment {
  int64_t first = 0;  // in the index space of the piece
  int64_t count = 0;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  bool lent = false;  // its input and output, if any, are lent

  int64_t end() const { return first + count; }
  bool holds(Range range) const { return range.first >= first && range.end() <= end(); }
};

/// The partition of one call.
class Partition {
 public:
  /// Rebuilds the partition for a call, and keeps allocated memory. `order` is the ring order.
  void reset(const Call& call, Rank rank, std::span<const Rank> order);

  /// For a call that differs from the last in its addresses only. Precondition: it has one buffer,
  /// and no counts.
  void replace(const rc_buffer& buffer);
  /// The caller's tensors of at least `least_bytes`, as loans. The caller has them granted before
  /// it makes fragments. Valid until reset() or replace().
  std::span<Loan> loans(size_t least_bytes);

  size_t strips() const { return strips_.size(); }
  int64_t longest_strip() const;
  int64_t elements() const;
  /// The elements of each strip in piece `k`, if a piece takes `stretch` elements of a strip.
  void counts_of(int64_t k, int64_t stretch, std::vector<int64_t>* counts) const;
  void fragments_of(int64_t k, int64_t stretch, std::vector<Fragment>* fragments) const;
  /// Gives the fragments of the last call the addresses of `buffers`, and marks none as lent.
  /// Precondition: the call has one piece and one buffer, and replace() was called with it.
  void readdress(std::span<Fragment> fragments, std::span<const rc_buffer> buffers) const;
  /// The ranges of a piece with these strip counts that have inputs and outputs.
  Ends ends_of(std::span<const int64_t> counts) const;
  /// A value that, with the counts, determines ends_of().
  uint64_t ends_key() const { return ends_key_; }

 private:
  struct Tensor {
    const std::byte* input;
    std::byte* output;
    int64_t count;
    int64_t input_at = 0, output_at = 0;   // bytes from the start of the buffer
    size_t loans[2] = {kNoLoan, kNoLoan};  // indexes of the loans of input and output
  };
  static constexpr size_t kNoLoan = SIZE_MAX;
  struct Strip {
    size_t first_tensor;
    size_t tensors;
    int64_t count;
    bool has_input, has_output;
  };
  void add_strip(const Tensor& tensor);
  void add_chunks(const Call& call, Rank rank, std::span<const Rank> order);
  bool lent(const Tensor& tensor) const;
  void add_alltoall(const Call& call, std::span<const Rank> order);

  std::vector<Tensor> tensors_;
  std::vector<int64_t> starts_;  // the first element of each tensor in its strip
  std::vector<Strip> strips_;
  std::vector<Loan> loans_;
  size_t element_bytes_ = 1;
  uint64_t ends_key_ = 0;
};

}  // namespace ringcoll
