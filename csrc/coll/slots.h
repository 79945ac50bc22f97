// The memory of pieces in flight: slots, each of two banks. Short pieces have theirs in what the
// group always has, longer ones in an extent that it takes for them (mesh/extents.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "mesh/extents.h"
#include "transport/transport.h"

namespace ringcoll {

/// A message whose memory may not be written before `link` has completed it.
struct Sent {
  Endpoint* link = nullptr;  // null: none
  Rank peer = kNobody;
  uint64_t number = 0;
  uint64_t bytes = 0;

  bool complete() const { return !link || link->completed() >= number; }
};

struct Banks {
  std::array<std::byte*, 2> begin{};
  size_t next = 0;  // where in both banks the next piece may begin
};

struct Slot {
  Banks kept;  // in what the group always has
  Banks lent;  // in its extent
  bool taken = false;
  std::vector<Sent> unread = {};  // of the piece that had it last: peers may still read it
};

/// One thread at a time.
class Slots {
 public:
  /// `memory` outlives this. Each of the `slots` has two banks of `bank_bytes`, for which
  /// memory.bytes() has room. Pieces of at least `least_rotating` bytes rotate through their banks:
  /// peers read them in the arena.
  Slots(CallMemory& memory, size_t slots, size_t bank_bytes, size_t least_rotating = SIZE_MAX);

  size_t size() const { return slots_.size(); }
  /// Of those that are free the one that was taken the longest ago; null: none is.
  Slot* take();
  static void give_back(Slot& slot) { slot.taken = false; }
  /// Where a piece of the slot, with `bytes` in each bank, begins in both. A piece that rotates
  /// begins behind the one before, so that lines have left the peers' caches before they are
  /// written again. Throws Error(kTransport) if there is no memory.
  std::array<std::byte*, 2> place_for(Slot& slot, size_t bytes);
  const std::vector<Slot>& all() const { return slots_; }
  /// Whether all that was sent from slots has left, but for what peers read in memory.
  template <typename ReadsMemory>
  bool have_left(ReadsMemory&& reads_memory) const {
    return std::ranges::all_of(slots_, [&](const Slot& slot) {
      return std::ranges::all_of(slot.unread, [&](const Sent& sent) {
        return reads_memory(sent.peer) || sent.complete();
      });
    });
  }

 private:
  void lay_out(std::span<std::byte> memory, size_t bank_bytes, Banks Slot::* banks);
  std::array<std::byte*, 2> place_for(Banks& banks, size_t bank_bytes, size_t bytes) const;

  CallMemory& memory_;
  const size_t bank_bytes_, least_rotating_;
  const size_t rotated_bytes_;  // of the banks of a slot
  size_t kept_bank_bytes_ = 0;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace ringcoll
