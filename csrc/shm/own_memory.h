// Tells which memory of this process other processes can read through the kernel
// (shm/peer_memory.h). They cannot read memory that a driver has mapped, such as a card's memory,
// or host memory that CUDA calls pinned: the kernel does not copy such pages for another process.
// This process reads it like any other memory.
#pragma once

#include <cstddef>

namespace ringcoll {

/// True if other processes can read this memory. Tries the first and the last byte, on each call,
/// since a driver may have mapped the address since the last one.
bool can_be_read(const void* data, size_t bytes);

}  // namespace ringcoll
