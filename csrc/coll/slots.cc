#include "coll/slots.h"

#include "base/machine.h"

namespace ringcoll {
namespace {

// Each piece begins in cache lines of its own.
constexpr size_t kPlaceAlignment = 128;
// kUsualCacheBytes is assumed if the system does not tell the size of a second-level cache. The
// banks of all slots rotate through at most kMostRotatedBytes, counting one bank of each slot.
constexpr size_t kUsualCacheBytes = 1 << 20, kMostRotatedBytes = 8 << 20;

// A place is reused after so many bytes: twice the size of a core's own cache.
size_t bytes_to_rotate_through() {
  int64_t cache = core_cache_bytes();
  return std::min(2 * (cache > 0 ? static_cast<size_t>(cache) : kUsualCacheBytes),
                  kMostRotatedBytes);
}

}  // namespace

Slots::Slots(CallMemory& memory, size_t slots, size_t bank_bytes, size_t least_rotating)
    : memory_(memory),
      bank_bytes_(bank_bytes),
      least_rotating_(least_rotating),
      rotated_bytes_(bytes_to_rotate_through() / slots),
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

std::array<std::byte*, 2> Slots::place_for(Banks& banks, size_t bank_bytes, size_t bytes) const {
  size_t first = 0;
  if (bytes >= least_rotating_) {
    if (banks.next + bytes <= std::min(rotated_bytes_, bank_bytes)) first = banks.next;
    banks.next = (first + bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  }
  return {banks.begin[0] + first, banks.begin[1] + first};
}

}  // namespace ringcoll
