// The limit on this process's file descriptors.
#pragma once

#include <cstddef>

namespace ringcoll {

/// Raises the limit to `count`, or as far as the process may raise it; never lowers it. Returns the
/// limit then in force, or 0 if it cannot be read.
size_t allow_descriptors(size_t count);

}  // namespace ringcoll
