#include "coll/mover.h"

#include <algorithm>

#include "base/copy.h"
#include "base/error.h"

namespace ringcoll {
namespace {

// A block is written twice: to the arena and to the output, or combined and then scaled. At this
// size the second pass finds it in the first-level cache.
constexpr int64_t kBlockBytes = 16 << 10;
// If a call is at least this long, its input is in no cache when it begins. Its output will have
// left the caches before anybody reads it.
constexpr int64_t kBeyondCachesBytes = 8 << 20;

// Calls visit(fragment, range) for every stretch of `range` within one fragment, in rising order.
template <typename Visit>
void for_each_fragment(std::span<const Fragment> fragments, Range range, Visit&& visit) {
  if (fragments.size() == 1 && fragments[0].holds(range)) {
    if (range.count > 0) visit(fragments[0], range);
    return;
  }
  auto it = std::ranges::upper_bound(fragments, range.first, {}, &Fragment::first);
  if (it != fragments.begin()) --it;
  for (; range.count > 0; ++it) {
    invariant(it != fragments.end(), "element {} is outside the caller's buffers", range.first);
    int64_t count = std::min(range.count, it->end() - range.first);
    visit(*it, Range{range.first, count});
    range.first += count;
    range.count -= count;
  }
}

}  // namespace

Mover::Mover(const Call& call, Counters& counters, CopyWays& ways)
    : element_bytes_(size_of(call.dtype)),
      prescale_(call.prescale),
      postscale_(call.postscale),
      copy_scale_(traits_of(call.collective).shares_result() ? 1 : call.postscale),
      counters_(counters),
      ways_(ways) {
  int64_t elements = 0;
  for (const rc_buffer& buffer : call.buffers) elements += buffer.count;
  beyond_caches_ =
      std::max(elements, call.total()) >= kBeyondCachesBytes / static_cast<int64_t>(element_bytes_);
  if (call.reduces()) {
    kernels_ = {combine_kernel(call.dtype, call.op, Operands::kInCaches),
                combine_kernel(call.dtype, call.op, Operands::kInMemory)};
    combine_ = kernels_[0];
  }
  if (prescale_ != 1 || postscale_ != 1) scale_ = scale_kernel(call.dtype);
}

void Mover::pack(const PieceMemory& memory, const Packing& packing) {
  uint64_t all = packing.range.count * element_bytes_;
  counters_.bytes_packed += all;
  if (prescale_ != 1) return pack(memory, packing, copy_bytes);
  tried_ |= (beyond_caches_ ? ways_.pack_from_memory : ways_.pack).is_trying(all);
  if (beyond_caches_) {
    constexpr CopyLoop* kLoops[] = {copy_bytes, fetch_bytes, stream_bytes};
    in_the_faster_way(ways_.pack_from_memory, all,
                      [&](size_t way) { pack(memory, packing, kLoops[way]); });
  } else {
    constexpr CopyLoop* kLoops[] = {copy_bytes, stream_bytes};
    in_the_faster_way(ways_.pack, all, [&](size_t way) { pack(memory, packing, kLoops[way]); });
  }
}

// A result that is sent on is stored in the way that has been fastest for packing.
Mover::CopyLoop* Mover::share_loop(size_t bytes) const {
  bool past = beyond_caches_ ? ways_.pack_from_memory.best(bytes) == CopyWays::kInOrderPastCaches
                             : ways_.pack.best(bytes) == CopyWays::kPastCaches;
  return past ? stream_bytes : copy_bytes;
}

void Mover::pack(const PieceMemory& memory, const Packing& packing, CopyLoop* copy) const {
  for_each_fragment(memory.fragments, packing.range, [&](const Fragment& f, Range stretch) {
    const std::byte* from = f.input + (stretch.first - f.first) * element_bytes_;
    std::byte* to = bank(memory, packing.to, stretch.first);
    size_t bytes = stretch.count * element_bytes_;
    if (prescale_ != 1)
      scale_(to, from, prescale_, stretch.count);
    else
      copy(to, from, bytes);
  });
}

const std::byte* Mover::source(const PieceMemory& memory, Storage storage, int64_t first) const {
  if (storage != Storage::kInput && storage != Storage::kOutput)
    return bank(memory, storage, first);
  auto after = memory.fragments.end();
  if (memory.fragments.size() > 1)
    after = std::ranges::upper_bound(memory.fragments, first, {}, &Fragment::first);
  invariant(after != memory.fragments.begin(), "element {} is outside the caller's buffers", first);
  const Fragment& f = *std::prev(after);
  const std::byte* base = storage == Storage::kInput ? f.input : f.output;
  return base + (first - f.first) * element_bytes_;
}

std::span<const Slice> Mover::slices(const PieceMemory& memory, Storage storage, Range range) {
  slices_.clear();
  for_each_fragment(memory.fragments, range, [&](const Fragment& f, Range stretch) {
    const std::byte* base = storage == Storage::kInput ? f.input : f.output;
    slices_.push_back({base + (stretch.first - f.first) * element_bytes_,
                       static_cast<uint64_t>(stretch.count) * element_bytes_});
  });
  return slices_;
}

void Mover::to_output(const PieceMemory& memory, Range range, const std::byte* data,
                      double factor) {
  for_each_fragment(memory.fragments, range, [&](const Fragment& f, Range stretch) {
    std::byte* to = f.output + (stretch.first - f.first) * element_bytes_;
    const std::byte* from = data + (stretch.first - range.first) * element_bytes_;
    if (to == from && factor == 1) return;  // received at its final place
    counters_.bytes_unpacked += stretch.count * element_bytes_;
    write_output(f, to, from, stretch.count, factor);
  });
}

// The output of a reduction in place is in caches, since its input was just read.
bool Mover::writes_through_caches(const Fragment& fragment) const {
  return !beyond_caches_ || (combine_ && fragment.input == fragment.output);
}

void Mover::write_output(const Fragment& fragment, std::byte* to, const std::byte* from,
                         int64_t count, double factor) {
  size_t bytes = count * element_bytes_;
  bool in_caches = writes_through_caches(fragment);
  if (factor == 1) return in_caches ? copy_bytes(to, from, bytes) : stream_bytes(to, from, bytes);
  if (in_caches) return scale_(to, from, factor, count);
  alignas(64) std::byte scaled[kBlockBytes];
  for (size_t at = 0; at < bytes; at += sizeof scaled) {
    size_t length = std::min(bytes - at, sizeof scaled);
    scale_(scaled, from + at, factor, static_cast<int64_t>(length / element_bytes_));
    stream_bytes(to + at, scaled, length);
  }
}

void Mover::combine(std::byte* result, const std::byte* own, const std::byte* theirs, int64_t count,
                    bool own_first) {
  combine_(result, own_first ? own : theirs, own_first ? theirs : own, count);
}

// Reduces one block. `block` lies within one fragment if the caller's memory takes part.
void Mover::reduce_block(const PieceMemory& memory, const Receipt& receipt, Range block,
                         const std::byte* data, bool own_first) {
  const Fragment* fragment = nullptr;
  if (receipt.operand == Storage::kInput || receipt.result == Storage::kOutput ||
      receipt.output_too)
    for_each_fragment(memory.fragments, block, [&](const Fragment& f, Range) { fragment = &f; });
  auto user = [&](auto* base) { return base + (block.first - fragment->first) * element_bytes_; };
  const std::byte* own = receipt.operand == Storage::kInput
                             ? user(fragment->input)
                             : bank(memory, receipt.operand, block.first);
  const std::byte* theirs = data + (block.first - receipt.range.first) * element_bytes_;
  if (receipt.result == Storage::kOutput) {
    std::byte* output = user(fragment->output);
    combine(output, own, theirs, block.count, own_first);
    if (postscale_ != 1) scale_(output, output, postscale_, block.count);
    return;
  }
  std::byte* result = bank(memory, receipt.result, block.first);
  if (!receipt.output_too) return combine(result, own, theirs, block.count, own_first);
  if (copy_scale_ == 1) {
    share_result(*fragment, {user(fragment->output), result, own, theirs}, block.count, own_first);
    return;
  }
  combine(result, own, theirs, block.count, own_first);
  to_output(memory, block, result, copy_scale_);
}

// A result for peers is combined elsewhere and then copied to the arena. The copy stores whole
// lines. A combination in the arena would first fetch them from the peer's cache (docs/design.md,
// "Copies").
void Mover::share_result(const Fragment& fragment, const Shared& at, int64_t count,
                         bool own_first) {
  size_t bytes = count * element_bytes_;
  counters_.bytes_unpacked += bytes;
  if (!writes_through_caches(fragment)) return share_past_caches(at, count, own_first);
  combine(at.output, at.own, at.theirs, count, own_first);
  if (postscale_ != 1) scale_(at.output, at.output, postscale_, count);
  share_loop(bytes)(at.result, at.output, bytes);
}

void Mover::share_past_caches(const Shared& at, int64_t count, bool own_first) {
  alignas(64) std::byte sum[kBlockBytes];
  size_t bytes = count * element_bytes_;
  combine(sum, at.own, at.theirs, count, own_first);
  if (postscale_ != 1) scale_(sum, sum, postscale_, count);
  share_loop(bytes)(at.result, sum, bytes);
  stream_bytes(at.output, sum, bytes);
}

void Mover::apply(const PieceMemory& memory, const Receipt& receipt, const std::byte* data,
                  bool own_first) {
  if (receipt.result == Storage::kNowhere) return;
  if (receipt.combine == Combine::kCopy) {
    if (receipt.result == Storage::kOutput)
      return to_output(memory, receipt.range, data, copy_scale_);
    size_t bytes = receipt.range.count * element_bytes_;
    std::byte* to = bank(memory, receipt.result, receipt.range.first);
    share_loop(bytes)(to, data, bytes);
    if (receipt.output_too) to_output(memory, receipt.range, data, copy_scale_);
    return;
  }
  uint64_t bytes = receipt.range.count * element_bytes_;
  counters_.bytes_combined += bytes;
  if (!beyond_caches_) return reduce(memory, receipt, data, own_first);
  in_the_faster_way(ways_.combine_from_memory, bytes, [&](size_t way) {
    combine_ = kernels_[way];
    reduce(memory, receipt, data, own_first);
  });
}

void Mover::fold_own(const PieceMemory& memory, const Receipt& receipt, Storage storage) {
  if (storage != Storage::kInput)
    return apply(memory, receipt, bank(memory, storage, receipt.range.first), true);
  for_each_fragment(memory.fragments, receipt.range, [&](const Fragment& f, Range stretch) {
    Receipt part = receipt;
    part.range = stretch;
    apply(memory, part, f.input + (stretch.first - f.first) * element_bytes_, true);
  });
}

void Mover::reduce(const PieceMemory& memory, const Receipt& receipt, const std::byte* data,
                   bool own_first) {
  bool twice = receipt.output_too || (receipt.result == Storage::kOutput && postscale_ != 1);
  int64_t most = twice ? std::max<int64_t>(1, kBlockBytes / element_bytes_) : receipt.range.count;
  auto blocks = [&](Range range) {
    for (int64_t at = range.first; at < range.end(); at += most)
      reduce_block(memory, receipt, {at, std::min(most, range.end() - at)}, data, own_first);
  };
  bool in_arena = receipt.operand != Storage::kInput && receipt.result != Storage::kOutput &&
                  !receipt.output_too;
  if (in_arena) return blocks(receipt.range);
  for_each_fragment(memory.fragments, receipt.range,
                    [&](const Fragment&, Range range) { blocks(range); });
}

void Mover::fill_neutral(const Call& call) {
  for (const rc_buffer& buffer : call.buffers)
    ringcoll::fill_neutral(call.dtype, call.op, buffer.output, buffer.count);
}

void Mover::move_own(const PieceMemory& memory, const Move& move) {
  if (move.from != Storage::kInput)
    return to_output(memory, {move.to_first, move.range.count},
                     bank(memory, move.from, move.range.first), postscale_);
  for_each_fragment(memory.fragments, move.range, [&](const Fragment& f, Range stretch) {
    const std::byte* from = f.input + (stretch.first - f.first) * element_bytes_;
    Range to{move.to_first + stretch.first - move.range.first, stretch.count};
    for_each_fragment(memory.fragments, to, [&](const Fragment& target, Range stretch) {
      std::byte* output = target.output + (stretch.first - target.first) * element_bytes_;
      const std::byte* input = from + (stretch.first - to.first) * element_bytes_;
      if (postscale_ != 1)  // with a prescale, all of the input is packed
        scale_(output, input, postscale_, stretch.count);
      else
        copy_bytes(output, input, stretch.count * element_bytes_);
      if (output != input || postscale_ != 1)
        counters_.bytes_unpacked += stretch.count * element_bytes_;
    });
  });
}

std::byte* Mover::place_for(const PieceMemory& memory, const Receipt& receipt) const {
  if (receipt.combine != Combine::kCopy) return nullptr;
  if (receipt.result == Storage::kBank0 || receipt.result == Storage::kBank1)
    return bank(memory, receipt.result, receipt.range.first);
  if (receipt.result != Storage::kOutput || copy_scale_ != 1) return nullptr;
  std::byte* place = nullptr;
  int fragments = 0;
  for_each_fragment(memory.fragments, receipt.range, [&](const Fragment& f, Range range) {
    if (fragments++ == 0) place = f.output + (range.first - f.first) * element_bytes_;
  });
  return fragments == 1 ? place : nullptr;
}

}  // namespace ringcoll
