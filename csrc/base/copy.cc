#include "base/copy.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace ringcoll {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLine = 64;
// memcpy() copies shorter messages by vectors.
constexpr size_t kLeastBytes = 2 << 10;
constexpr size_t kSlowAhead = 32;

bool is_slow(const std::byte* to, const std::byte* from) {
  size_t ahead = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  return ahead > 0 && ahead < kSlowAhead;
}

}  // namespace

// A slow copy goes through a block in the first-level cache. The block begins one line before the
// destination, counted from the beginnings of their pages. So both copies are fast ones.
void copy_bytes(void* to, const void* from, size_t bytes) {
  if (to == from || bytes == 0) return;
  auto* out = static_cast<std::byte*>(to);
  auto* in = static_cast<const std::byte*>(from);
  if (bytes < kLeastBytes || !is_slow(out, in)) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::array<std::byte, 2 * kPage> room;
  auto begin = reinterpret_cast<uintptr_t>(room.data());
  std::byte* block = room.data() + (reinterpret_cast<uintptr_t>(out) - kLine - begin) % kPage;
  for (size_t done = 0; done < bytes; done += kPage) {
    size_t length = std::min(kPage, bytes - done);
    std::memcpy(block, in + done, length);
    std::memcpy(out + done, block, length);
  }
}

}  // namespace ringcoll
