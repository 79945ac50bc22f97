// What each collective is, in one table: which ranks give what, which ranks get what, whether it
// combines, and whether it has a root. The table at rc_call says the same in words. This header
// holds constants alone. The Python front sees nothing else behind the C ABI, and checks its
// tensors by them too.
#pragma once

#include <array>
#include <cstdint>

#include "base/types.h"

namespace ringcoll {

/// How much a buffer of a rank holds. A chunk is the data of one rank, or for one rank.
enum class Extent : uint8_t { kNone, kVector, kOwnChunk, kAllChunks, kReceived };
/// Which ranks use a buffer.
enum class Whose : uint8_t { kAll, kRoot, kAllButRoot };

struct CollectiveTraits {
  const char* name;
  Extent input;
  Whose reads;  // these ranks have an input
  Extent output;
  Whose writes;  // these ranks have an output; the root of a broadcast may have one
  bool reduces;
  bool has_root;

  constexpr bool has_data() const { return input != Extent::kNone; }
  constexpr bool is_vector() const { return input == Extent::kVector; }
  /// Chunks may differ in length, as `counts` says.
  constexpr bool takes_counts() const {
    return input == Extent::kOwnChunk || input == Extent::kAllChunks;
  }
  /// Each rank gives its own chunk.
  constexpr bool gathers() const { return input == Extent::kOwnChunk; }
  /// Each rank sends a chunk to each rank. Each rank has counts of its own. `recv_counts` may cut
  /// what it receives otherwise than `counts` cuts what it sends.
  constexpr bool exchanges() const { return output == Extent::kReceived; }
  /// All ranks get the whole result of a reduction.
  constexpr bool shares_result() const {
    return reduces && output == Extent::kVector && writes == Whose::kAll;
  }
};

/// Indexed by rc_collective.
inline constexpr std::array<CollectiveTraits, RC_COLLECTIVE_COUNT> kCollectiveTraits = {{
    {"allreduce", Extent::kVector, Whose::kAll, Extent::kVector, Whose::kAll, true, false},
    {"allgather", Extent::kOwnChunk, Whose::kAll, Extent::kAllChunks, Whose::kAll, false, false},
    {"reduce_scatter", Extent::kAllChunks, Whose::kAll, Extent::kOwnChunk, Whose::kAll, true,
     false},
    {"broadcast", Extent::kVector, Whose::kRoot, Extent::kVector, Whose::kAllButRoot, false, true},
    {"reduce", Extent::kVector, Whose::kAll, Extent::kVector, Whose::kRoot, true, true},
    {"gather", Extent::kOwnChunk, Whose::kAll, Extent::kAllChunks, Whose::kRoot, false, true},
    {"scatter", Extent::kAllChunks, Whose::kRoot, Extent::kOwnChunk, Whose::kAll, false, true},
    {"alltoall", Extent::kAllChunks, Whose::kAll, Extent::kReceived, Whose::kAll, false, false},
    {"barrier", Extent::kNone, Whose::kAll, Extent::kNone, Whose::kAll, false, false},
}};

/// Precondition: the collective exists, which check_call() validates.
inline const CollectiveTraits& traits_of(Collective collective) {
  return kCollectiveTraits[collective];
}
inline bool is_looked_at(Whose whose, bool is_root) {
  return whose == Whose::kAll || is_root == (whose == Whose::kRoot);
}

}  // namespace ringcoll
