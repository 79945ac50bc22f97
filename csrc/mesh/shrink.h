// The group of those of a group who are left.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "mesh/group.h"
#include "mesh/mesh.h"

namespace ringcoll {

/// Collective over the ranks of `group` that live, whether it has failed or not, the `round`-th
/// time for that group; needs neither a store nor the ranks that are gone. All of them get a group
/// of the same ranks, in the order of `group`, which may hold one that ends meanwhile: its next
/// call fails. Throws Error: kTimeout naming who has not come by the deadline; kPeerLost if the
/// others hold this rank for lost; kTransport, on all, if one has no room for another group.
std::unique_ptr<Group> shrink(const std::shared_ptr<Mesh>& mesh, Group& group, uint64_t round,
                              Deadline deadline);

}  // namespace ringcoll
