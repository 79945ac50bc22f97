// Files that a user names.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace ringcoll {

/// Returns the content of a regular file of at most `limit` bytes, else nothing and the reason in
/// `*failure`. A pipe or device is not opened: that could block, or have no end.
std::optional<std::string> read_small_file(const std::string& path, size_t limit,
                                           std::string* failure);

}  // namespace ringcoll
