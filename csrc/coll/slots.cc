#include "coll/slots.h"

namespace ringcoll {

Slots::Slots(SharedMemory& arena, std::span<std::byte> extent, size_t slots, size_t bank_bytes,
             size_t least_huge_bytes)
    : arena_(arena), least_huge_bytes_(least_huge_bytes) {
  std::byte* at = extent.data();
  for (size_t i = 0; i < slots; i++, at += 2 * bank_bytes)
    slots_.push_back({{at, at + bank_bytes}});
}

Slot* Slots::take() {
  for (size_t i = 0; i < slots_.size(); i++) {
    Slot& slot = slots_[next_++ % slots_.size()];
    if (slot.taken) continue;
    slot.taken = true;
    return &slot;
  }
  return nullptr;
}

void Slots::prepare(Slot& slot, size_t bytes) {
  if (bytes <= slot.prepared_bytes) return;
  slot.prepared_bytes = bytes;
  if (bytes < least_huge_bytes_) return;
  for (std::byte* bank : slot.bank) arena_.prepare(bank, bytes);
}

}  // namespace ringcoll
