// Copies structs of the C ABI from callers that were compiled against another header. An older
// header has shorter structs, a newer one may have longer ones.
#pragma once

#include <cstddef>
#include <span>

#include "ringcoll/tables.h"

namespace ringcoll {

/// The sizes of a struct in the revisions of the C ABI.
struct StructHistory {
  const char* name;
  std::span<const size_t> sizes;  // in revision `since` and those that follow
  int since = 1;
};

/// Throws Error(kInvalidArgument) unless `size` is that of a revision, or can be that of a later
/// one.
void check_size(size_t size, const StructHistory& history);
/// Copies as many bytes of `given` as its struct_size says, at most the last size of the history,
/// which is that of `copy`. Precondition: `copy` is zero. Throws Error(kInvalidArgument) if `given`
/// is null, if check_size() does, or if bytes beyond `copy` are not zero.
void copy_from_caller(const void* given, void* copy, const StructHistory& history);

/// Each new revision adds a size to each history (csrc/engine/caller_struct.cc).
StructHistory history_of(const rc_call*);
StructHistory history_of(const rc_comm_options*);
StructHistory history_of(const rc_message*);
StructHistory history_of(const rc_message_info*);
StructHistory history_of(const rc_agent_options*);
StructHistory history_of(const rc_copies*);
StructHistory history_of(const rc_event*);
StructHistory history_of(const rc_table_call*);

/// The caller's struct with all fields of this library's; fields that the caller lacks are zero.
/// Throws as copy_from_caller() does.
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
