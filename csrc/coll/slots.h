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
#include "shm/shared_memory.h"
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
  size_t next = 0;            // from where in both the next piece may lie
  size_t prepared_bytes = 0;  // of each, by SharedMemory::prepare()
};

struct Slot {
  Banks kept;  // in what the group always has
  Banks lent;  // in its extent
  bool taken = false;
  std::vector<Sent> unread = {};  // of the piece that had it last: peers may still read it
};

/// What is worth what, by the bytes of a piece in a bank.
struct Thresholds {
  size_t huge_pages = SIZE_MAX;
  /// To turn through memory: what peers read in the arena, not what leaves it when it is sent.
  size_t turning = SIZE_MAX;
};

/// One thread at a time.
class Slots {
 public:
  /// `arena` and `memory`, which is of it, outlive this. Each of the `slots` has two banks of
  /// `bank_bytes`, for which memory.bytes() has room.
  Slots(SharedMemory& arena, CallMemory& memory, size_t slots, size_t bank_bytes,
        const Thresholds& thresholds);

  size_t size() const { return slots_.size(); }
  /// Of those that are free the one that was taken the longest ago; null: none is.
  Slot* take();
  static void give_back(Slot& slot) { slot.taken = false; }
  /// Where a piece of `bytes` in each bank of the slot begins in both: those that are worth it turn
  /// through the banks' first parts (docs/design.md, "Copies"). What is large and there for the
  /// first time gets huge pages. Throws Error(kTransport) if there is no memory.
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
  std::array<std::byte*, 2> place_for(Banks& banks, size_t bank_bytes, size_t bytes);

  SharedMemory& arena_;
  CallMemory& memory_;
  const Thresholds thresholds_;
  const size_t bank_bytes_;
  size_t kept_bank_bytes_ = 0;
  size_t turn_bytes_ = 0;  // of the banks of a slot
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace ringcoll
