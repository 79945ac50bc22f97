#include "mesh/extents.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ringcoll {

Extents::Extents(SharedMemory& arena, std::span<std::byte> region, size_t each,
                 std::string_view what, EventLoop& loop)
    : arena_(arena), region_(region), each_(each), what_(what), loop_(loop) {}

bool Extents::Extent::is_free() {
  if (held) return false;
  std::erase_if(readers, [](const auto& reader) { return !reader->any(); });
  return readers.empty();
}

Extents::Extent& Extents::at(std::span<std::byte> extent) {
  return extents_[static_cast<size_t>(extent.data() - region_.data()) / each_];
}

std::span<std::byte> Extents::take(const void* holder) {
  std::lock_guard lock(mutex_);
  Extent* best = nullptr;
  for (Extent& each : extents_) {
    if (!each.is_free()) continue;
    if (!best || std::pair(each.in_memory, each.since) > std::pair(best->in_memory, best->since))
      best = &each;
  }
  if (!best) {
    check((extents_.size() + 1) * each_ <= region_.size(), Code::kTransport,
          "there is no more shared memory for {}: {} times {} bytes are in use, or hold messages "
          "that a peer has not taken; close some groups, or have calls in flight in fewer of them",
          what_, extents_.size(), each_);
    best = &extents_.emplace_back();
  }
  best->held = best->in_memory = true;
  best->holder = holder;
  return region_.subspan(static_cast<size_t>(best - extents_.data()) * each_, each_);
}

void Extents::put_back(Extent& extent, ReaderList readers) {
  extent.held = false;
  extent.since = Clock::now();
  extent.readers = std::move(readers);
  if (!will_trim_) trim_later();
}

// Precondition: the lock is held, as for trim().
void Extents::trim_later() {
  will_trim_ = true;
  loop_.after(kIdle, [this] {
    std::lock_guard lock(mutex_);
    will_trim_ = false;
    if (trim()) trim_later();
  });
}

void Extents::park(std::span<std::byte> extent, ReaderList readers) {
  std::lock_guard lock(mutex_);
  put_back(at(extent), std::move(readers));
}

bool Extents::resume(std::span<std::byte> extent, const void* holder) {
  std::lock_guard lock(mutex_);
  Extent& mine = at(extent);
  if (mine.holder != holder) return false;
  mine.held = true;
  mine.readers.clear();  // the holder knows them
  return true;
}

// An extent that another holder has taken meanwhile stays with that holder.
void Extents::give_back(std::span<std::byte> extent, ReaderList readers) {
  std::lock_guard lock(mutex_);
  Extent& each = at(extent);
  each.holder = nullptr;
  put_back(each, std::move(readers));
}

void Extents::end() {
  std::lock_guard lock(mutex_);
  extents_.clear();
}

// Returns false if no extent is left whose pages could go back later.
bool Extents::trim() {
  auto now = Clock::now();
  bool any = false;
  for (size_t i = 0; i < extents_.size(); i++) {
    Extent& each = extents_[i];
    if (!each.in_memory) continue;
    if (each.is_free() && now - each.since >= kIdle) {
      arena_.discard(region_.data() + i * each_, each_);
      each.in_memory = false;
      each.holder = nullptr;
    }
    any |= each.in_memory && !each.held;
  }
  return any;
}

std::span<std::byte> CallMemory::take(bool* fresh) {
  *fresh = false;
  if (taken_) return extent_;
  if (extent_.empty() || !extents_.resume(extent_, this)) {
    extent_ = extents_.take(this);
    *fresh = true;
  }
  taken_ = true;
  return extent_;
}

void CallMemory::park(ReaderList readers) {
  taken_ = false;
  extents_.park(extent_, std::move(readers));
}

void CallMemory::end(ReaderList readers) {
  if (extent_.empty() || (!taken_ && !extents_.resume(extent_, this))) return;
  extents_.give_back(std::exchange(extent_, {}), std::move(readers));
  taken_ = false;
}

}  // namespace ringcoll
