// What all ranks say in a round, made short: those of one host say the same but for a few numbers.
// LZ4 blocks behind their length. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ringcoll {

/// At most 2 GB.
std::string compress(std::string_view bytes);
/// Throws Error(kTransport) if it is nothing that compress() makes, or longer than `limit`.
std::string decompress(std::string_view compressed, size_t limit);

}  // namespace ringcoll
