// Files that a user names.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace ringcoll {

/// The content of a regular file of at most `limit` bytes; of anything else nothing, and why in
/// `*failure`. What is no file (a pipe, a device) is not opened: it could block, or have no end.
std::optional<std::string> read_small_file(const std::string& path, size_t limit,
                                           std::string* failure);

}  // namespace ringcoll
