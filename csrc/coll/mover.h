// Moves payload between the caller's memory, the arena and what peers sent: packs, combines,
// unpacks, with the scale factors fused in. Every byte that ringcoll copies or reduces passes
// through here.
//
// The postscale of an allreduce is applied once, by the rank that completes a value: the others get
// the scaled one, which they can take, and pass on, as it is. Elsewhere values are scaled where
// they reach an output, since who completes one may not know that it is wanted, and in a scan other
// ranks combine it further.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "coll/call.h"
#include "coll/copy_ways.h"
#include "coll/partition.h"
#include "comm/communicator.h"
#include "reduce/reduce.h"
#include "schedule/plan.h"

namespace ringcoll {

/// Where a piece's index space lies: the caller's fragments, and the two banks of its slot in the
/// arena.
struct PieceMemory {
  std::span<const Fragment> fragments;  // in rising order of `first`
  std::array<std::byte*, 2> bank{};
};

class Mover {
 public:
  /// `counters` and `ways` outlive it.
  Mover(const Call& call, Counters& counters, CopyWays& ways);

  /// Input to a bank, prescaled.
  void pack(const PieceMemory& memory, const Packing& packing);
  /// What a peer sent (`data`: the elements of receipt.range) replaces or joins what this rank
  /// holds. `own_first`: this rank's operand stands left.
  void apply(const PieceMemory& memory, const Receipt& receipt, const std::byte* data,
             bool own_first);
  /// This rank's own input, which lies in `storage`, joins what it holds, on the right.
  void fold_own(const PieceMemory& memory, const Receipt& receipt, Storage storage);
  /// The neutral element of the operation to all outputs.
  static void fill_neutral(const Call& call);
  /// Input to the output.
  void move_own(const PieceMemory& memory, const Move& move);
  /// The first element of what is sent from `storage`. The caller's memory is contiguous there.
  const std::byte* source(const PieceMemory& memory, Storage storage, int64_t first) const;
  /// The slices of the caller's memory that make up `range` of `storage`, kInput or kOutput. Valid
  /// until the next call.
  std::span<const Slice> slices(const PieceMemory& memory, Storage storage, Range range);
  /// Where a transport that copies anyway should put what is received for `receipt`; null if it has
  /// no single place.
  std::byte* place_for(const PieceMemory& memory, const Receipt& receipt) const;

  /// Whether, since this was last asked, something was packed to find out which way is the fastest.
  bool has_tried() { return std::exchange(tried_, false); }

  size_t element_bytes() const { return element_bytes_; }
  /// The input may be read by pack() only, since it is scaled there.
  bool pack_all() const { return prescale_ != 1; }
  /// Outputs hold what is passed on to other ranks.
  bool outputs_are_sendable() const { return copy_scale_ == 1; }

 private:
  std::byte* bank(const PieceMemory& memory, Storage storage, int64_t element) const {
    return memory.bank[storage == Storage::kBank1] + element * element_bytes_;
  }
  using CopyLoop = void(void* to, const void* from, size_t bytes);
  void pack(const PieceMemory& memory, const Packing& packing, CopyLoop* copy) const;
  CopyLoop* share_loop(size_t bytes) const;
  void to_output(const PieceMemory& memory, Range range, const std::byte* data, double factor);
  void write_output(const Fragment& fragment, std::byte* to, const std::byte* from, int64_t count,
                    double factor);
  void combine(std::byte* result, const std::byte* own, const std::byte* theirs, int64_t count,
               bool own_first);
  bool writes_through_caches(const Fragment& fragment) const;
  /// Where a result that is wanted and sent on goes, and what it is made of.
  struct Shared {
    std::byte *output, *result;
    const std::byte *own, *theirs;
  };
  void share_result(const Fragment& fragment, const Shared& at, int64_t count, bool own_first);
  void share_past_caches(const Shared& at, int64_t count, bool own_first);
  void reduce(const PieceMemory& memory, const Receipt& receipt, const std::byte* data,
              bool own_first);
  void reduce_block(const PieceMemory& memory, const Receipt& receipt, Range block,
                    const std::byte* data, bool own_first);

  size_t element_bytes_;
  double prescale_;
  double postscale_;
  // What is received for the output is multiplied by this: the postscale, or 1 where the rank that
  // completed a value has applied it already, so that what is sent on is the final value.
  double copy_scale_;
  bool beyond_caches_;
  std::array<CombineKernel, 2> kernels_{};  // in order; from four pages at a time
  CombineKernel combine_ = nullptr;         // the one in use
  ScaleKernel scale_ = nullptr;
  Counters& counters_;
  CopyWays& ways_;
  bool tried_ = false;
  std::vector<Slice> slices_;
};

}  // namespace ringcoll
