// Compresses what all ranks say in one round of an exchange. Ranks of one host differ in a few
// numbers only. The format is a 32-bit length and an LZ4 block. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ringcoll {

/// `bytes` must have at most 2 GB (LZ4_MAX_INPUT_SIZE).
std::string compress(std::string_view bytes);
/// Throws Error(kTransport) if compress() cannot have made the input, or if its contents exceed
/// `limit` bytes.
std::string decompress(std::string_view compressed, size_t limit);

}  // namespace ringcoll
