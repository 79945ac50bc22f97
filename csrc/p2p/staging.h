// Memory of the arena that messages are copied to, where a channel cannot send from any memory. It
// is cut into chunks of two sizes, so that long messages do not hold up short ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ringcoll {

class Staging {
 public:
  using Chunk = std::span<std::byte>;

  /// Each size gets half of `memory`. If a half has no room for one small chunk, there are no small
  /// chunks. Large chunks are no longer than a half.
  Staging(std::span<std::byte> memory, uint64_t small_bytes, uint64_t large_bytes);

  /// Takes a chunk of the smallest size that holds `bytes`. Empty if none of that size is free, or
  /// no size is large enough.
  Chunk take(uint64_t bytes);
  /// Empty if none is free.
  Chunk take_large() { return take(large_); }
  void give_back(Chunk chunk);
  uint64_t small_bytes() const { return small_bytes_; }  // 0: there are no small chunks
  uint64_t large_bytes() const { return large_bytes_; }

 private:
  static Chunk take(std::vector<Chunk>& free);

  uint64_t small_bytes_, large_bytes_;
  std::vector<Chunk> small_, large_;  // free chunks
};

}  // namespace ringcoll
