// Makes a group of some ranks of another group, which all agree on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/types.h"
#include "mesh/group/group.h"

namespace ringcoll {

/// Gathers bytes of every rank of the parent on every rank, in the order of ranks. Collective over
/// the parent. `counts` has the bytes of each rank; null: all give as many as this one. Throws what
/// ends a call.
using Gather =
    std::function<void(const void* mine, int64_t bytes, void* all, const int64_t* counts)>;

/// A group of these ranks of `parent`, of which this process is one. It has not joined yet. `mesh`
/// is the parent's.
std::unique_ptr<Group> part_of(const std::shared_ptr<Mesh>& mesh, const Group& parent,
                               std::span<const Rank> ranks);

/// Collective over all ranks of `parent`. Each rank passes the ranks of its own group, in the order
/// that they are to have there. A rank that passes none gets null. The returned group has joined.
/// Throws Error. kInvalidArgument, on all ranks, means that some rank passed what is no group; the
/// parent stays good. kMismatch means that two ranks of a group name different ranks. `mesh` is the
/// parent's.
std::unique_ptr<Group> split(const std::shared_ptr<Mesh>& mesh, Group& parent,
                             std::span<const Rank> ranks, const Gather& gather);

}  // namespace ringcoll
