#include "coll/slots.h"

#include <algorithm>

#include "base/machine.h"

namespace ringcoll {
namespace {

// Pieces begin in lines of their own.
constexpr size_t kPlaceAlignment = 128;
// Of all slots together, should the system not say how large a second-level cache is.
constexpr size_t kUsualCacheBytes = 1 << 20, kMostTurnBytes = 8 << 20;

// So much is written until a place is written again: twice what a core's own cache holds.
size_t bytes_to_turn_through() {
  int64_t cache = core_cache_bytes();
  return std::min(2 * (cache > 0 ? static_cast<size_t>(cache) : kUsualCacheBytes), kMostTurnBytes);
}

}  // namespace

Slots::Slots(SharedMemory& arena, std::span<std::byte> extent, size_t slots, size_t bank_bytes,
             const Thresholds& thresholds)
    : arena_(arena), thresholds_(thresholds) {
  turn_bytes_ = std::min(bytes_to_turn_through() / slots, bank_bytes);
  std::byte* at = extent.data();
  for (size_t i = 0; i < slots; i++, at += 2 * bank_bytes)
    slots_.push_back({{at, at + bank_bytes}});
}

Slot* Slots::take() {
  for (size_t i = 0; i < slots_.size(); i++) {
    Slot& slot = slots_[next_];
    if (++next_ == slots_.size()) next_ = 0;
    if (slot.taken) continue;
    slot.taken = true;
    return &slot;
  }
  return nullptr;
}

size_t Slots::offset_for(Slot& slot, size_t bytes) {
  size_t first = 0;
  if (bytes >= thresholds_.turning) {
    if (slot.next + bytes <= turn_bytes_) first = slot.next;
    slot.next = (first + bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  }
  size_t end = first + bytes;
  if (bytes >= thresholds_.huge_pages && end > slot.prepared_bytes) {
    slot.prepared_bytes = std::max(end, turn_bytes_);
    for (std::byte* bank : slot.bank) arena_.prepare(bank, slot.prepared_bytes);
  }
  return first;
}

}  // namespace ringcoll
