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

Slots::Slots(SharedMemory& arena, CallMemory& memory, size_t slots, size_t bank_bytes,
             const Thresholds& thresholds)
    : arena_(arena),
      memory_(memory),
      thresholds_(thresholds),
      bank_bytes_(bank_bytes),
      turn_bytes_(bytes_to_turn_through() / slots),
      slots_(slots) {
  size_t kept = memory.own().size() / slots / 2 / kPlaceAlignment * kPlaceAlignment;
  kept_bank_bytes_ = std::min(kept, bank_bytes);
  lay_out(memory.own(), kept_bank_bytes_, &Slot::kept);
}

void Slots::lay_out(std::span<std::byte> memory, size_t bank_bytes, Banks Slot::* banks) {
  std::byte* at = memory.data();
  for (Slot& slot : slots_) {
    slot.*banks = {.begin = {at, at + bank_bytes}};
    at += 2 * bank_bytes;
  }
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

std::array<std::byte*, 2> Slots::place_for(Slot& slot, size_t bytes) {
  if (bytes <= kept_bank_bytes_) return place_for(slot.kept, kept_bank_bytes_, bytes);
  bool fresh = false;
  std::span<std::byte> extent = memory_.take(&fresh);
  if (fresh) lay_out(extent, bank_bytes_, &Slot::lent);
  return place_for(slot.lent, bank_bytes_, bytes);
}

std::array<std::byte*, 2> Slots::place_for(Banks& banks, size_t bank_bytes, size_t bytes) {
  size_t turn_bytes = std::min(turn_bytes_, bank_bytes), first = 0;
  if (bytes >= thresholds_.turning) {
    if (banks.next + bytes <= turn_bytes) first = banks.next;
    banks.next = (first + bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  }
  size_t end = first + bytes;
  if (bytes >= thresholds_.huge_pages && end > banks.prepared_bytes) {
    banks.prepared_bytes = std::max(end, turn_bytes);
    for (std::byte* bank : banks.begin) arena_.prepare(bank, banks.prepared_bytes);
  }
  return {banks.begin[0] + first, banks.begin[1] + first};
}

}  // namespace ringcoll
