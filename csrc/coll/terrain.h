// Makes the input of the choice of schedules from what a communicator knows of its ranks and links.
#pragma once

#include "coll/select.h"
#include "comm/communicator.h"

namespace ringcoll {

/// The rate at which a core combines two operands in its caches: 10 GB/s, from reductions of one
/// rank. It does not depend on the links.
inline constexpr double kCombinedBytesPerUs = 10000;
/// The same where all ranks share memory and have a core each. Reading what the peer has packed is
/// part of the link's rate there. The rest, which is reading the own operand from the nearest
/// cache, takes little: 100 to 200 GB/s (perf/pacemaker.c).
inline constexpr double kCombinedInMemoryBytesPerUs = 200000;

/// The fabric of the communicator's ranks in ring order, with the costs that all ranks have agreed
/// on, and the limits of its configuration.
Terrain terrain_of(const Communicator& comm);

}  // namespace ringcoll
