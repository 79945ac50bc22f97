// Checksums of tensors. They find what a link, memory or a defect has changed, not what an attacker
// has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringcoll {

/// A tensor is summed in chunks, so that a chunk is still in a cache when it is copied, and so that
/// chunks could be summed in any order. The last chunk may be shorter.
inline constexpr size_t kChecksumChunk = size_t{128} << 10;

/// The XXH3-64 of the chunks' XXH3-64, as 64-bit little-endian numbers in the order of the chunks.
/// It is part of the C ABI and of stored deltas, so it never changes.
uint64_t checksum(const void* data, size_t bytes);
/// Copies and sums in one pass over memory. Returns checksum(from, bytes). The ranges must not
/// overlap, unless to == from.
uint64_t copy_checksum(void* to, const void* from, size_t bytes);

}  // namespace ringcoll
