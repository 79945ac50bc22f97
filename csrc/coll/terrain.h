// From what a communicator knows of its ranks and links to what the choice of schedules needs.
#pragma once

#include "coll/select.h"
#include "comm/communicator.h"

namespace ringcoll {

/// The rate at which a core combines two operands in its caches into a result: 10 GB/s, taken from
/// reductions of one rank. It says nothing of the links.
inline constexpr double kCombinedBytesPerUs = 10000;
/// The same where all ranks share memory and have a core each. There a combination reads what the
/// peer has packed as a copy does, which the rate of the link has in it; what it takes longer is
/// the reading of its own operand from the nearest cache (two cores, 1 to 4 MiB, recursive_doubling
/// against halving in perf/pacemaker.c: 100 to 200 GB/s).
inline constexpr double kCombinedInMemoryBytesPerUs = 200000;

/// The fabric of the communicator's ranks in ring order, with the costs that all ranks agreed on.
/// Slots and the largest piece are the caller's to say.
Terrain terrain_of(const Communicator& comm);

}  // namespace ringcoll
