// What ringcoll_simulate() returns: what calls would take on a cluster that is described, not
// there.
#pragma once

#include <string>
#include <string_view>

namespace ringcoll {

/// Throws Error(kInvalidArgument) that names the field of the request.
std::string simulate_json(std::string_view request);

}  // namespace ringcoll
