// Bytes in which much comes again, made short: what ranks of one host say of themselves is alike
// but for a few numbers. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ringcoll {

/// Tells by its place and length what stood in `bytes` before.
std::string fold(std::string_view bytes);
/// What was folded. Throws Error(kTransport) if it is nothing that fold() makes, or longer than
/// `limit`.
std::string unfold(std::string_view folded, size_t limit);

}  // namespace ringcoll
