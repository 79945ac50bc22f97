#include "serving/buffers.h"

#include <algorithm>
#include <mutex>

namespace ringcoll::serving {
namespace {

constexpr size_t kMostKept = 8;
constexpr size_t kMostBytesKept = size_t{512} << 20;
constexpr size_t kLeastBytes = 256 << 10;

}  // namespace

struct Buffers::Free {
  std::mutex mutex;
  std::vector<std::unique_ptr<SharedBuffer>> buffers;  // the one that was used last at the end

  void give_back(std::unique_ptr<SharedBuffer> buffer) {
    if (buffer->is_discarded()) return;
    std::vector<std::unique_ptr<SharedBuffer>> spare;  // destroyed without the lock
    std::lock_guard lock(mutex);
    buffers.push_back(std::move(buffer));
    size_t kept = 0, bytes = 0;
    for (auto each = buffers.rbegin(); each != buffers.rend(); ++each) {
      bytes += (*each)->bytes();
      if (kept == kMostKept || bytes > kMostBytesKept) break;
      kept++;
    }
    const auto end = buffers.end() - static_cast<std::ptrdiff_t>(kept);
    spare.assign(std::make_move_iterator(buffers.begin()), std::make_move_iterator(end));
    buffers.erase(buffers.begin(), end);
  }
};

Buffers::Buffers(remote::Agent& agent) : agent_(agent), free_(std::make_shared<Free>()) {}

std::shared_ptr<SharedBuffer> Buffers::take(size_t bytes) {
  std::unique_ptr<SharedBuffer> found;
  {
    std::lock_guard lock(free_->mutex);
    auto& all = free_->buffers;
    auto fits = [&](const auto& each) {
      return each->bytes() >= bytes && each->bytes() / 4 <= std::max(bytes, kLeastBytes);
    };
    if (auto at = std::ranges::find_if(all, fits); at != all.end()) {
      found = std::move(*at);
      all.erase(at);
    }
  }
  if (!found)
    found = std::make_unique<SharedBuffer>(agent_, std::max(bytes, kLeastBytes), /*writable=*/true);
  return {found.release(), [free = std::weak_ptr(free_)](SharedBuffer* buffer) {
            std::unique_ptr<SharedBuffer> owned(buffer);
            if (auto there = free.lock()) there->give_back(std::move(owned));
          }};
}

void Buffers::discard(const std::shared_ptr<SharedBuffer>& buffer) {
  if (buffer) buffer->discard();
}

}  // namespace ringcoll::serving
