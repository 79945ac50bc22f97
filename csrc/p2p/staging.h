// Memory of the arena from which messages are sent that a transport does not send from anywhere, in
// chunks of two sizes: many small ones, so that long messages do not hold up small ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ringcoll {

class Staging {
 public:
  using Chunk = std::span<std::byte>;

  /// Half of the memory for either size. Where there is none for a size there are no such chunks.
  Staging(std::span<std::byte> memory, uint64_t small_bytes, uint64_t large_bytes);

  /// The smallest that holds so many bytes; empty: none of that size is free, or there is none.
  Chunk take(uint64_t bytes);
  /// Empty: none is free.
  Chunk take_large() { return take(large_); }
  void give_back(Chunk chunk);
  uint64_t small_bytes() const { return small_bytes_; }  // 0: there are none
  uint64_t large_bytes() const { return large_bytes_; }

 private:
  static Chunk take(std::vector<Chunk>& free);

  uint64_t small_bytes_, large_bytes_;
  std::vector<Chunk> small_, large_;  // that are free
};

}  // namespace ringcoll
