// Copies of payload.
#pragma once

#include <cstddef>

namespace ringcoll {

/// Copies as memcpy() does, and avoids a case in which that is slow. Does nothing if to == from. On
/// processors with a fast `rep movsb` the C library uses it for long copies. Some of them (AMD's
/// family 25, Zen 3; https://lunnova.dev/articles/ryzen-slow-short-rep-mov/) then copy byte by byte
/// if the destination is 1 to 31 bytes ahead of the source. Both are counted from the beginnings of
/// their pages. NumPy arrays, which begin 16 bytes into a page, and tensors in the middle of fused
/// ones meet this case.
void copy_bytes(void* to, const void* from, size_t bytes);

}  // namespace ringcoll
