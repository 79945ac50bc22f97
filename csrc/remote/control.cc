#include "remote/control.h"

#include <unistd.h>

#include "base/order.h"
#include "base/process.h"

namespace ringcoll::remote {

std::optional<Located> locate(const RegionEntry& entry, uint64_t secret) {
  if (observe(entry.secret) != secret) return {};
  // Relaxed: the secret was published after these words. is_open_still() tells whether they have
  // changed since.
  constexpr auto relaxed = std::memory_order_relaxed;
  Located found{.address = entry.address.load(relaxed),
                .bytes = entry.bytes.load(relaxed),
                .segment_fd = entry.segment_fd.load(relaxed),
                .writable = entry.writable.load(relaxed) != 0,
                .segment_inode = entry.segment_inode.load(relaxed),
                .segment_bytes = entry.segment_bytes.load(relaxed),
                .segment_offset = entry.segment_offset.load(relaxed)};
  if (!is_open_still(entry, secret)) return {};
  return found;
}

bool is_open_still(const RegionEntry& entry, uint64_t secret) {
  // What was copied before must not be read after the secret. The bytes are not atomic, so only a
  // fence can order them.
  read_fence();
  return entry.secret.load(std::memory_order_relaxed) == secret;
}

WriteScope::WriteScope(ControlMemory& control, uint32_t region) {
  auto own = static_cast<int32_t>(::getpid());
  for (WriterSlot& slot : control.writers) {
    int32_t free = 0;
    if (observe(slot.pid) != 0 || !slot.pid.compare_exchange_strong(free, own)) continue;
    slot.region.store(region + 1, std::memory_order_seq_cst);
    full_fence();  // the caller looks at the secret next
    slot_ = &slot;
    return;
  }
}

WriteScope::~WriteScope() {
  if (!slot_) return;
  publish(slot_->region, 0u);
  publish(slot_->pid, 0);
}

bool has_writers(ControlMemory& control, uint32_t region) {
  full_fence();  // after the caller's store to the secret
  bool any = false;
  for (WriterSlot& slot : control.writers) {
    int32_t pid = observe(slot.pid);
    if (pid == 0 || slot.region.load(std::memory_order_seq_cst) != region + 1) continue;
    if (!has_ended(pid)) {
      any = true;
    } else {
      publish(slot.region, 0u);
      publish(slot.pid, 0);
    }
  }
  return any;
}

}  // namespace ringcoll::remote
