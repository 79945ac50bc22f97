// Which memory of this process others can read by the kernel (shm/peer_memory.h). Not all: what a
// driver has mapped (a card's memory, or the host's that CUDA calls pinned) has no pages that the
// kernel would copy for another process, though this one reads it as any other.
#pragma once

#include <cstddef>

namespace ringcoll {

/// Tried at both ends, each time: an address that could be read may have become a driver's since.
bool can_be_read(const void* data, size_t bytes);

}  // namespace ringcoll
