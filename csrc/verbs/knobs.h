// The knobs of RDMA, for the registry of transports, and for tests of this layer alone.
#pragma once

#include <vector>

#include "base/knobs.h"

namespace ringcoll::verbs {

const std::vector<KnobRow>& knobs();

}  // namespace ringcoll::verbs
