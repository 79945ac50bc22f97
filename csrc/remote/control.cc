#include "remote/control.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "base/futex.h"
#include "base/order.h"
#include "base/process.h"

namespace ringcoll::remote {
namespace {

// An answer comes within this time if the other end is about to give it. Falling asleep and being
// woken take as long.
constexpr Duration kSpin = std::chrono::microseconds(50);

}  // namespace

std::optional<Located> locate(const RegionEntry& entry, uint64_t secret) {
  if (observe(entry.secret) != secret) return {};
  // Relaxed: the secret was published after these words. is_open_still() tells whether they have
  // changed since.
  constexpr auto kRelaxed = std::memory_order_relaxed;
  Located found{.address = entry.address.load(kRelaxed),
                .bytes = entry.bytes.load(kRelaxed),
                .segment_fd = entry.segment_fd.load(kRelaxed),
                .writable = entry.writable.load(kRelaxed) != 0,
                .segment_inode = entry.segment_inode.load(kRelaxed),
                .segment_bytes = entry.segment_bytes.load(kRelaxed),
                .segment_offset = entry.segment_offset.load(kRelaxed)};
  if (!is_open_still(entry, secret)) return {};
  return found;
}

bool is_open_still(const RegionEntry& entry, uint64_t secret) {
  // What was copied before must not be read after the secret. The bytes are not atomic, so only a
  // fence can order them.
  read_fence();
  return entry.secret.load(std::memory_order_relaxed) == secret;
}

WriteScope::WriteScope(ControlMemory& control, uint32_t region) : control_(control) {
  auto own = static_cast<int32_t>(::getpid());
  for (uint32_t i = 0; i < kMostWriters; i++) {
    WriterSlot& slot = control.writers[i];
    int32_t free = 0;
    if (observe(slot.pid) != 0 || !slot.pid.compare_exchange_strong(free, own)) continue;
    uint32_t used = observe(control.slots_used);
    while (used <= i && !control.slots_used.compare_exchange_weak(used, i + 1)) {
    }
    slot.region.store(region + 1, std::memory_order_seq_cst);
    full_fence();  // the caller looks at the secret next
    slot_ = &slot;
    return;
  }
}

bool WriteScope::leave_notice(uint64_t secret, uint64_t value) {
  if (slot_ - control_.writers >= kMostNotices) return false;
  slot_->secret.store(secret, std::memory_order_relaxed);
  slot_->value.store(value, std::memory_order_relaxed);
  publish(slot_->notice, control_.notices.fetch_add(1, std::memory_order_acq_rel) + 1);
  publish(slot_->region, 0u);
  slot_ = nullptr;
  ring(control_);
  return true;
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
    uint32_t written = slot.region.load(std::memory_order_seq_cst);
    bool is_unnamed = written == 0 && observe(slot.notice) == 0;
    if (pid == 0 || (written != region + 1 && !is_unnamed)) continue;
    if (!has_ended(pid)) {
      any = any || written == region + 1;
      continue;
    }
    publish(slot.region, 0u);
    if (observe(slot.notice) == 0) publish(slot.pid, 0);
  }
  return any;
}

// Only notices up to the newest number before the search count. Of a thread that has left one of
// these, all earlier ones are seen.
std::optional<uint64_t> take_left_notice(ControlMemory& control, uint64_t secret) {
  uint64_t newest = observe(control.notices);
  WriterSlot* oldest = nullptr;
  uint64_t number = newest + 1;
  for (uint32_t i = 0, used = observe(control.slots_used); i < used; i++) {
    WriterSlot& slot = control.writers[i];
    uint64_t found = observe(slot.notice);
    if (found == 0 || found >= number) continue;
    if (slot.secret.load(std::memory_order_relaxed) != secret) continue;
    oldest = &slot;
    number = found;
  }
  if (!oldest) return {};
  uint64_t value = oldest->value.load(std::memory_order_relaxed);
  publish(oldest->notice, uint64_t{0});
  publish(oldest->pid, 0);
  return value;
}

void ring(ControlMemory& control) {
  control.bell.fetch_add(1, std::memory_order_seq_cst);
  if (control.sleepers.load(std::memory_order_seq_cst) > 0) wake_all(control.bell);
}

Listening::Listening(ControlMemory& control) : control_(control), seen_(observe(control.bell)) {}

void Listening::wait(Duration limit) {
  Deadline end(std::min(limit, kSpin));
  while (observe(control_.bell) == seen_ && !end.passed()) ::sched_yield();
  if (observe(control_.bell) == seen_ && limit > kSpin) {
    control_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    wait_while(control_.bell, seen_, limit - kSpin);
    control_.sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
  seen_ = observe(control_.bell);
}

}  // namespace ringcoll::remote
