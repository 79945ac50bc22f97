// XXH3-64 for the instruction sets of this machine. Private to delta/.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ringcoll {

/// XXH3_64bits() of libxxhash, whose archive has only the instructions that every processor has.
using Xxh3 = uint64_t (*)(const void* data, size_t bytes);

/// The same, compiled for AVX2. Exists on x86-64 only.
uint64_t xxh3_avx2(const void* data, size_t bytes);

}  // namespace ringcoll
