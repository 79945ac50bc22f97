// How a call is cut into pieces: from the index space that schedules work on to the caller's
// memory.
//
// A call is cut into pieces, and a piece is what one run of a schedule handles. A vector, as of an
// allreduce or a broadcast, is one strip, cut into consecutive pieces. A chunked collective has a
// strip for every rank's chunk, in ring order (alltoall: the strips to send, then those to
// receive), and piece k takes the k-th stretch of every strip. So the piece of a chunked collective
// is a small instance of the same collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coll/call.h"
#include "schedule/plan.h"
#include "transport/transport.h"

namespace ringcoll {

/// A stretch of a piece that is contiguous in the caller's memory. Null where there is no input or
/// no output.
struct Fragment {
  int64_t first = 0;  // in the piece's index space
  int64_t count = 0;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  bool lent = false;  // all of it to the network

  int64_t end() const { return first + count; }
  bool holds(Range range) const { return range.first >= first && range.end() <= end(); }
};

/// Of a call.
class Partition {
 public:
  /// Rebuilds for a call; memory is kept from call to call. `order` is the ring order.
  void reset(const Call& call, Rank rank, std::span<const Rank> order);

  /// For another call like the last one, of one buffer, without counts.
  void replace(const rc_buffer& buffer);
  /// The caller's tensors of at least `least_bytes`, to be granted before fragments are made.
  std::span<Loan> loans(size_t least_bytes);

  size_t strips() const { return strips_.size(); }
  int64_t longest_strip() const;
  int64_t elements() const;
  /// Elements of each strip in piece `k`, if pieces take `stretch` elements of a strip.
  void counts_of(int64_t k, int64_t stretch, std::vector<int64_t>* counts) const;
  void fragments_of(int64_t k, int64_t stretch, std::vector<Fragment>* fragments) const;
  /// Those of a call in one piece, of tensors of one length, after a replace() with the one of
  /// `buffers`. None of them is lent.
  void readdress(std::span<Fragment> fragments, std::span<const rc_buffer> buffers) const;
  /// Where a piece with these strip counts has inputs and outputs.
  Ends ends_of(std::span<const int64_t> counts) const;
  /// A bit pattern that, with the counts, determines ends_of().
  uint64_t ends_key() const { return ends_key_; }

 private:
  struct Tensor {
    const std::byte* input;
    std::byte* output;
    int64_t count;
    int64_t input_at = 0, output_at = 0;   // bytes from the start of its buffer
    size_t loans[2] = {kNoLoan, kNoLoan};  // of input and output
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
  std::vector<int64_t> starts_;  // of each tensor within its strip
  std::vector<Strip> strips_;
  std::vector<Loan> loans_;
  size_t element_bytes_ = 1;
  uint64_t ends_key_ = 0;
};

}  // namespace ringcoll
