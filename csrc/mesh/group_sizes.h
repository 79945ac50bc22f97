// How the memory of groups is cut. It is addresses alone: what nobody touches takes no memory.
#pragma once

#include <cstddef>

namespace ringcoll {

struct GroupSizes {
  struct Region {
    size_t each = 0;
    size_t count = 0;

    size_t bytes() const { return each * count; }
  };
  /// Of groups at a time: that live; whose calls are in flight, or whose links are registered with
  /// a device; that have exchanged messages. Regions of the arena.
  Region short_calls, calls, messages;
  /// For what transports keep of each group (TransportOptions::part_bytes).
  size_t part_bytes = 0;

  size_t arena_bytes() const { return short_calls.bytes() + calls.bytes() + messages.bytes(); }
};

/// Addresses that this rank affords for groups under its limits; SIZE_MAX: it has none.
size_t affordable_group_bytes();

/// `group_bytes` and `arena_bytes` are agreed, and so are the length of each extent and part_bytes.
/// How many there are is this machine's matter: the more ranks it has, the more map them.
GroupSizes sizes_of_groups(size_t group_bytes, size_t arena_bytes, size_t ranks_of_machine);

}  // namespace ringcoll
