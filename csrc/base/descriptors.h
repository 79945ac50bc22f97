// How many descriptors this process may have.
#pragma once

#include <cstddef>

namespace ringcoll {

/// Raises what is allowed to `count`, as far as the process may raise it; never lowers it. Returns
/// what is allowed then.
size_t allow_descriptors(size_t count);

}  // namespace ringcoll
