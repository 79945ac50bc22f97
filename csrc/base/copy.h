// Copies of payload.
#pragma once

#include <cstddef>

namespace ringcoll {

/// memcpy, also where that is slow; nothing if to == from. The C library uses `rep movsb` for what
/// is long on processors that have it fast, and some of these (AMD's family 25, Zen 3; found by
/// others, too: https://lunnova.dev/articles/ryzen-slow-short-rep-mov/) then copy byte by byte if
/// the destination is 1 to 31 bytes ahead of the source, counted from the beginnings of their
/// pages: 256 KiB in 90 to 140 us instead of 9. So it is with arrays of NumPy, which begin 16 bytes
/// behind that of a page, and with tensors in the middle of fused ones.
void copy_bytes(void* to, const void* from, size_t bytes);

}  // namespace ringcoll
