// Structs of the C ABI as callers pass them that were compiled against another header than this
// library's: an older one, whose structs are shorter, or a newer one.
#pragma once

#include <cstddef>
#include <span>

#include "ringcoll/ringcoll.h"

namespace ringcoll {

/// What a struct has been since revision 1 of the C ABI.
struct StructHistory {
  const char* name;
  std::span<const size_t> sizes;  // in revision `since`, and those that follow
  int since = 1;
};

/// Throws Error(kInvalidArgument) if no revision had that size, and it is not a later one's.
void check_size(size_t size, const StructHistory& history);
/// Copies as many bytes of `given` as its struct_size says; the rest of `copy`, which has the last
/// size of the history, is zero. Throws Error(kInvalidArgument) if no revision had that size, or if
/// it is larger than this library's and what is beyond is not zero.
void copy_from_caller(const void* given, void* copy, const StructHistory& history);

/// With every new revision a size is added here (csrc/engine/caller_struct.cc has the old ones).
StructHistory history_of(const rc_call*);
StructHistory history_of(const rc_comm_options*);
StructHistory history_of(const rc_message*);
StructHistory history_of(const rc_message_info*);

/// The caller's struct with all fields of this library's.
template <typename Struct>
Struct from_caller(const Struct* given) {
  if (given && given->struct_size == sizeof(Struct)) [[likely]]
    return *given;
  Struct copy{};
  copy_from_caller(given, &copy, history_of(given));
  copy.struct_size = sizeof copy;
  return copy;
}

}  // namespace ringcoll
