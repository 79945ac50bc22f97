// The memory of pieces in flight: slots of two banks each. Short pieces use memory that the group
// always has. Longer pieces use an extent that the group takes for them (mesh/extents.h).
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

/// A message whose memory must not be written until `link` has completed it.
struct Sent {
  Endpoint* link = nullptr;  // null: there is no message
  Rank peer = kNobody;
  uint64_t number = 0;
  uint64_t bytes = 0;

  bool complete() const { return !link || link->completed() >= number; }
};

struct Banks {
  std::array<std::byte*, 2> begin{};
  size_t next = 0;  // where the next piece may begin in both banks
};

struct Slot {
  Banks kept;  // in memory that the group always has
  Banks lent;  // in the group's extent
  bool taken = false;
  std::vector<Sent> unread = {};  // what peers may still read of the slot's last piece
};

/// One thread at a time.
class Slots {
 public:
  /// `memory` outlives this object. Each of the `slots` has two banks of `bank_bytes`;
  /// memory.bytes() is enough for them all. Pieces of at least `least_rotating` bytes rotate
  /// through their banks, since peers read them in the arena.
  Slots(CallMemory& memory, size_t slots, size_t bank_bytes, size_t least_rotating = SIZE_MAX);

  size_t size() const { return slots_.size(); }
  /// Takes the next free slot in cyclic order. Null if no slot is free.
  Slot* take();
  static void give_back(Slot& slot) { slot.taken = false; }
  /// Where a piece with `bytes` in each bank begins in both banks of the slot. A piece that rotates
  /// begins behind the previous one. So its lines have left the peers' caches before they are
  /// written again. Throws Error(kTransport) if there is no memory.
  std::array<std::byte*, 2> place_for(Slot& slot, size_t bytes);
  const std::vector<Slot>& all() const { return slots_; }
  /// Whether all messages from slots have left. Those to peers that read this rank's memory
  /// (`reads_memory`) do not count.
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
  const size_t rotated_bytes_;  // how much of a bank is rotated through
  size_t kept_bank_bytes_ = 0;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace ringcoll
