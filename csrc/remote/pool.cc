#include "remote/pool.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/machine.h"

namespace ringcoll::remote {
namespace {

constexpr size_t kLine = 64;
// Small tensors share a segment, for each segment takes a descriptor. A larger one has its own, so
// that the memory goes back to the system with it.
constexpr size_t kSharedSegment = 4 << 20;
constexpr size_t kMostOfAShared = 256 << 10;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Pool& Pool::of_process() {
  static auto* pool = new Pool;  // never destroyed: threads may use it while the process ends
  return *pool;
}

Pool::Segment& Pool::add_segment(size_t bytes) {
  auto segment = std::make_unique<Segment>();
  segment->memory = SharedMemory::create(bytes);
  const std::byte* first = segment->memory.data();
  return *(segments_[first] = std::move(segment));
}

std::byte* Pool::allocate_in(Segment& segment, size_t bytes) {
  size_t at = 0;
  for (auto [offset, length] : segment.used) {
    if (at + bytes <= offset) break;
    at = offset + length;
  }
  if (at + bytes > segment.memory.bytes()) return nullptr;
  segment.used[at] = bytes;
  return segment.memory.data() + at;
}

std::byte* Pool::allocate(size_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > kMostOfAShared) {
    Segment& own = add_segment(bytes);
    return allocate_in(own, own.memory.bytes());
  }
  bytes = round_up(std::max<size_t>(bytes, 1), bytes < page_bytes() ? kLine : page_bytes());
  for (auto& [first, segment] : segments_)
    if (segment->memory.bytes() == kSharedSegment)
      if (std::byte* memory = allocate_in(*segment, bytes)) return memory;
  return allocate_in(add_segment(kSharedSegment), bytes);
}

Pool::Segments::iterator Pool::segment_of(const void* memory) {
  auto* at = static_cast<const std::byte*>(memory);
  auto next = segments_.upper_bound(at);
  if (next == segments_.begin()) return segments_.end();
  auto found = std::prev(next);
  return found->second->memory.contains(at, 1) ? found : segments_.end();
}

void Pool::release(std::byte* memory) {
  if (!memory) return;
  std::lock_guard listeners_lock(listeners_mutex_);
  std::lock_guard lock(mutex_);
  auto found = segment_of(memory);
  check(found != segments_.end(), Code::kInvalidArgument,
        "this memory is not of ringcoll_allocate()");
  Segment& segment = *found->second;
  auto used = segment.used.find(static_cast<size_t>(memory - segment.memory.data()));
  check(used != segment.used.end(), Code::kInvalidArgument,
        "this is not the beginning of memory of ringcoll_allocate(), or it was released before");
  for (Listener* listener : listeners_) listener->released(memory, used->second);
  // Peers may have mapped the segment for longer; the pages go back all the same.
  segment.memory.clear(memory, round_up(used->second, sizeof(uint64_t)));
  segment.used.erase(used);
  if (segment.used.empty()) segments_.erase(found);
}

void Pool::add(Listener& listener) {
  std::lock_guard lock(listeners_mutex_);
  listeners_.push_back(&listener);
}

void Pool::remove(Listener& listener) {
  std::lock_guard lock(listeners_mutex_);
  std::erase(listeners_, &listener);
}

std::optional<Pool::Place> Pool::place_of(const void* memory, size_t bytes) {
  std::lock_guard lock(mutex_);
  auto found = segment_of(memory);
  if (found == segments_.end()) return {};
  const Segment& segment = *found->second;
  if (!segment.memory.contains(memory, bytes)) return {};
  auto offset = static_cast<size_t>(static_cast<const std::byte*>(memory) - segment.memory.data());
  return Place{segment.memory.fd(), segment.memory.inode(), segment.memory.bytes(), offset};
}

}  // namespace ringcoll::remote
