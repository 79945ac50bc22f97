// Which memory of this process others can read by the kernel (shm/peer_memory.h). Not all: what a
// driver has mapped (a card's memory, or the host's that CUDA calls pinned) has no pages that the
// kernel would copy for another process, though this one reads it as any other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ringcoll {

/// One thread at a time.
class OwnMemory {
 public:
  /// Tried at both ends, by a system call each; a yes is remembered while that range is asked for
  /// again and again. Memory that has been replaced since by a driver's is a yes, too: who reads it
  /// is told that it is not there.
  bool can_be_read(const void* data, size_t bytes);

 private:
  struct Range {
    uintptr_t begin = 0, end = 0;
  };
  std::array<Range, 64> known_{};  // by where they begin
};

}  // namespace ringcoll
