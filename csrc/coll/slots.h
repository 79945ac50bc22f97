// The memory of pieces in flight: slots of the arena, each of two banks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
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

struct Slot {
  std::byte* bank[2];
  size_t next = 0;  // from where in the banks its next piece may lie
  bool taken = false;
  std::vector<Sent> unread = {};  // of the piece that had it last: peers may still read it
  size_t prepared_bytes = 0;      // of each bank, by SharedMemory::prepare()
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
  /// `arena` outlives it; the slots lie in `extent` of it, which has room for `slots` times two
  /// banks of `bank_bytes`.
  Slots(SharedMemory& arena, std::span<std::byte> extent, size_t slots, size_t bank_bytes,
        const Thresholds& thresholds);

  size_t size() const { return slots_.size(); }
  /// Of those that are free the one that was taken the longest ago; null: none is.
  Slot* take();
  static void give_back(Slot& slot) { slot.taken = false; }
  /// Where a piece of `bytes` in each bank of the slot begins in both, bytes from their beginnings:
  /// those that are worth it turn through the banks' first parts (docs/design.md, "Copies"). What
  /// is large and there for the first time gets huge pages.
  size_t offset_for(Slot& slot, size_t bytes);
  const std::vector<Slot>& all() const { return slots_; }

 private:
  SharedMemory& arena_;
  const Thresholds thresholds_;
  size_t turn_bytes_ = 0;  // of a bank
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace ringcoll
