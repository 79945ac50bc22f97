// Copies of memory that is in no cache, or is to be in none. They know no element types, so that
// layers which carry bytes may include this header.
#pragma once

#include <cstddef>

namespace ringcoll {

/// copy_bytes() (base/copy.h) for a source that is in no cache. It reads from four pages at a time,
/// which is faster on some processors only.
void fetch_bytes(void* to, const void* from, size_t bytes);
/// copy_bytes() for a destination that is in no cache and not read soon, such as the output of a
/// call larger than the caches. Its stores bypass the caches. It is not for the arena, which a peer
/// reads soon. It is not for lines that were just read either: evicting them first costs more than
/// it saves.
void stream_bytes(void* to, const void* from, size_t bytes);

}  // namespace ringcoll
