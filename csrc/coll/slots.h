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

  bool complete() const { return !link || link->completed() >= number; }
};

struct Slot {
  std::byte* bank[2];
  bool taken = false;
  std::vector<Sent> unread = {};  // of the piece that had it last: peers may still read it
  size_t prepared_bytes = 0;      // of each bank, by SharedMemory::prepare()
};

/// One thread at a time.
class Slots {
 public:
  /// `arena` outlives it; the slots lie in `extent` of it, which has room for `slots` times two
  /// banks of `bank_bytes`. From `least_huge_bytes` on a piece is worth huge pages.
  Slots(SharedMemory& arena, std::span<std::byte> extent, size_t slots, size_t bank_bytes,
        size_t least_huge_bytes);

  size_t size() const { return slots_.size(); }
  /// Of those that are free the one that was taken the longest ago; null: none is.
  Slot* take();
  static void give_back(Slot& slot) { slot.taken = false; }
  /// For a piece of `bytes` in each bank: huge pages, if it is large and the first that is.
  void prepare(Slot& slot, size_t bytes);
  const std::vector<Slot>& all() const { return slots_; }

 private:
  SharedMemory& arena_;
  const size_t least_huge_bytes_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace ringcoll
