// Comparison of two versions of a tensor, bit for bit: -0.0 differs from 0.0, and NaNs of equal
// bits are equal. Elements have 1, 2, 4 or 8 bytes and no type. Pointers need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringcoll {

/// An index within a block has 16 bits.
inline constexpr size_t kComparedAtOnce = size_t{1} << 16;
/// find_changed() writes up to so many elements more than it was asked for.
inline constexpr size_t kChangedBeyond = 128;

/// True for 1, 2, 4 and 8.
bool can_compare(size_t element_bytes);

/// Finds the elements of `now` that differ from those of `before`, and writes their indices, in
/// ascending order, and their values. Returns how many there are. If there are more than `most`, it
/// returns early, with a number above `most`. Precondition: can_compare(element_bytes), `count` is
/// at most kComparedAtOnce, and both outputs have room for min(count, most) + kChangedBeyond
/// elements.
size_t find_changed(const void* before, const void* now, size_t count, size_t element_bytes,
                    size_t most, uint16_t* indices, void* values);
/// How many of `count` elements differ. Precondition: can_compare(element_bytes).
size_t count_changed(const void* before, const void* now, size_t count, size_t element_bytes);

}  // namespace ringcoll
