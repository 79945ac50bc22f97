#include "p2p/staging.h"

#include <algorithm>

namespace ringcoll {
namespace {

std::vector<Staging::Chunk> cut(std::span<std::byte> memory, uint64_t bytes) {
  std::vector<Staging::Chunk> chunks;
  for (; bytes > 0 && memory.size() >= bytes; memory = memory.subspan(bytes))
    chunks.push_back(memory.first(bytes));
  // The chunk at the beginning is taken first, so that few chunks touch little memory.
  std::ranges::reverse(chunks);
  return chunks;
}

}  // namespace

Staging::Staging(std::span<std::byte> memory, uint64_t small_bytes, uint64_t large_bytes)
    : small_bytes_(small_bytes), large_bytes_(std::min<uint64_t>(large_bytes, memory.size() / 2)) {
  small_ = cut(memory.first(memory.size() / 2), small_bytes_);
  large_ = cut(memory.subspan(memory.size() / 2), large_bytes_);
  if (small_.empty()) small_bytes_ = 0;
}

Staging::Chunk Staging::take(uint64_t bytes) {
  if (bytes <= small_bytes_) return take(small_);
  return bytes <= large_bytes_ ? take(large_) : Chunk();
}

Staging::Chunk Staging::take(std::vector<Chunk>& free) {
  if (free.empty()) return {};
  Chunk chunk = free.back();
  free.pop_back();
  return chunk;
}

void Staging::give_back(Chunk chunk) {
  if (chunk.empty()) return;
  (chunk.size() == small_bytes_ ? small_ : large_).push_back(chunk);
}

}  // namespace ringcoll
