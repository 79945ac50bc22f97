// Which memory of this process others can read through the kernel (shm/peer_memory.h). Memory that
// a driver has mapped (a card's, or the host's that CUDA calls pinned) has no pages that the kernel
// would copy for another process. This process reads it like any other memory.
#pragma once

#include <cstddef>

namespace ringcoll {

/// Tries the first and the last byte, on each call: a driver may have mapped the address since.
bool can_be_read(const void* data, size_t bytes);

}  // namespace ringcoll
