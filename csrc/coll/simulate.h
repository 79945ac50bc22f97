// The answer of ringcoll_simulate(): how long calls would take on a described cluster.
#pragma once

#include <string>
#include <string_view>

namespace ringcoll {

/// Takes and returns JSON. Throws Error(kInvalidArgument), which names the field of the request.
std::string simulate_json(std::string_view request);

}  // namespace ringcoll
