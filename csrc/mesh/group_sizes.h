// How the memory of groups is cut. These are reserved addresses: pages that nobody touches take no
// memory.
#pragma once

#include <cstddef>

namespace ringcoll {

struct GroupSizes {
  struct Region {
    size_t each = 0;
    size_t count = 0;

    size_t bytes() const { return each * count; }
  };
  /// Regions of the arena. `short_calls`: one extent for each living group. `calls`: one for each
  /// group that has calls in flight or whose links are registered with a device. `messages`: one
  /// for each group that has exchanged messages.
  Region short_calls, calls, messages;
  /// What transports keep of each group (TransportOptions::part_bytes).
  size_t part_bytes = 0;

  size_t arena_bytes() const { return short_calls.bytes() + calls.bytes() + messages.bytes(); }
};

/// The address space that this rank affords for groups under its limits; SIZE_MAX: no limit.
size_t affordable_group_bytes();

/// `group_bytes` and `arena_bytes` are agreed, so the length of each extent and part_bytes are
/// equal on all ranks. The number of extents may differ between machines: every rank of a machine
/// maps those of all the others.
GroupSizes sizes_of_groups(size_t group_bytes, size_t arena_bytes, size_t ranks_of_machine);

}  // namespace ringcoll
