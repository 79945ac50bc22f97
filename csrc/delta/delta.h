// Deltas: what makes one version of a tensor of another, without loss. A delta is bytes that may be
// sent or stored.
//
// All numbers are little-endian, and nothing is aligned:
//
//   u64 checksum        of all bytes that follow (delta/checksum.h)
//   u32 magic           "RCD\n"
//   u16 version         1
//   u16 element_bytes   1, 2, 4 or 8
//   u64 bytes           of the tensor, a multiple of element_bytes
//
// A record follows for each block of 65,536 elements, of which the last one may be shorter:
//
//   u32 changed         elements that the record has, or kWholeBlock
//   u16 indices         as many, ascending, counted from the beginning of the block
//   values              as many elements; with kWholeBlock all elements of the block, and no
//   indices
//
// Whichever form of a record is shorter is used. So a delta is hardly longer than the tensor
// (most_delta_bytes()), and 1 % of changed bfloat16 elements take 2 % of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace ringcoll {

/// No delta of a tensor of so many bytes is longer. Throws as make_delta() does.
size_t most_delta_bytes(size_t bytes, size_t element_bytes);

/// Writes the delta that turns `before` into `now`, both of `bytes` bytes, to `out`. Returns its
/// length, or nothing if it is longer than `capacity`; `out` then has no meaning. It stops early
/// then, so a caller passes as capacity what is still cheaper than the whole tensor. `out` must not
/// overlap the tensors, which must not change meanwhile. Throws Error(kInvalidArgument) if elements
/// have another width than 1, 2, 4 or 8, or do not divide `bytes`.
std::optional<size_t> make_delta(const void* before, const void* now, size_t bytes,
                                 size_t element_bytes, void* out, size_t capacity);

/// Turns the tensor, which has the bytes of `before`, into `now`. Throws Error(kInvalidArgument) if
/// the delta is damaged, has another format or belongs to a tensor of another length; the tensor is
/// then unchanged. A delta does not know the bytes of `before`, so its caller compares a checksum
/// of the result. `delta` must not change meanwhile, nor overlap the tensor.
void apply_delta(void* tensor, size_t bytes, const void* delta, size_t length);

/// How many elements differ, bit for bit. Throws as make_delta() does.
size_t changed_elements(const void* before, const void* now, size_t bytes, size_t element_bytes);

}  // namespace ringcoll
