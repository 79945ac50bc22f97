// Moves payload between the caller's memory, the arena and what peers sent. It packs, combines and
// unpacks, and applies the scale factors in the same pass.
//
// The rank that completes a value of an allreduce applies the postscale, once. The other ranks
// receive the scaled value, and may use it and pass it on as it is. In other collectives a value is
// scaled where it reaches an output: the rank that completes a value may not need it, and in a scan
// other ranks combine it further.
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

/// The memory of a piece: the caller's fragments, and the two banks of the piece's slot in the
/// arena.
struct PieceMemory {
  std::span<const Fragment> fragments;  // in rising order of `first`
  std::array<std::byte*, 2> bank{};
};

class Mover {
 public:
  /// `counters` and `ways` outlive this object. `call` is not kept.
  Mover(const Call& call, Counters& counters, CopyWays& ways);

  /// Copies input to a bank, and applies the prescale.
  void pack(const PieceMemory& memory, const Packing& packing);
  /// Copies what a peer sent to the result of `receipt`, or combines it with this rank's operand.
  /// `data` has the elements of receipt.range. `own_first`: this rank's operand is the left one.
  void apply(const PieceMemory& memory, const Receipt& receipt, const std::byte* data,
             bool own_first);
  /// Combines this rank's own input, which lies in `storage`, with the operand of `receipt`. The
  /// input is the right operand.
  void fold_own(const PieceMemory& memory, const Receipt& receipt, Storage storage);
  /// Fills all outputs with the neutral element of the operation.
  static void fill_neutral(const Call& call);
  /// Copies input to the output, and applies the postscale.
  void move_own(const PieceMemory& memory, const Move& move);
  /// The address of the element `first` in `storage`. Where that is the caller's memory, a message
  /// from it lies in one fragment.
  const std::byte* source(const PieceMemory& memory, Storage storage, int64_t first) const;
  /// The slices of the caller's memory that make up `range` of `storage`, which is kInput or
  /// kOutput. Valid until the next call of slices().
  std::span<const Slice> slices(const PieceMemory& memory, Storage storage, Range range);
  /// Where a transport that copies anyway should put the message of `receipt`. Null if the message
  /// is combined or scaled, or has no single destination.
  std::byte* place_for(const PieceMemory& memory, const Receipt& receipt) const;

  /// Whether a piece was packed in a way under trial since the last call of this function.
  bool has_tried() { return std::exchange(tried_, false); }

  size_t element_bytes() const { return element_bytes_; }
  /// True if only pack() may read the input, because it applies the prescale.
  bool pack_all() const { return prescale_ != 1; }
  /// True if outputs hold the same values that are passed on to other ranks.
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
  /// The memory of a result that goes to the output and is sent on.
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
  // The factor for what is received for the output. It is the postscale, or 1 if the rank that
  // completed the value has applied it.
  double copy_scale_;
  bool beyond_caches_;
  std::array<CombineKernel, 2> kernels_{};  // for operands in caches; for operands in memory
  CombineKernel combine_ = nullptr;         // the kernel in use
  ScaleKernel scale_ = nullptr;
  Counters& counters_;
  CopyWays& ways_;
  bool tried_ = false;
  std::vector<Slice> slices_;
};

}  // namespace ringcoll
