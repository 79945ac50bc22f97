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
/// Which ranks give the inputs that are combined into the output of a rank.
enum class Combines : uint8_t { kNothing, kAllRanks, kRanksUpToOwn, kRanksBeforeOwn };

struct CollectiveTraits {
  const char* name;
  Extent input;
  Whose reads;  // these ranks have an input
  Extent output;
  Whose writes;  // these ranks have an output; the root of a broadcast may have one
  Combines combines;
  bool has_root;

  constexpr bool has_data() const { return input != Extent::kNone; }
  constexpr bool is_vector() const { return input == Extent::kVector; }
  constexpr bool reduces() const { return combines != Combines::kNothing; }
  /// The result of a rank depends on which rank it is.
  constexpr bool is_prefix() const { return excludes_own() || combines == Combines::kRanksUpToOwn; }
  /// Nothing is combined for rank 0, which gets the neutral element of the operation.
  constexpr bool excludes_own() const { return combines == Combines::kRanksBeforeOwn; }
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
    return combines == Combines::kAllRanks && output == Extent::kVector && writes == Whose::kAll;
  }
};

/// Indexed by rc_collective.
inline constexpr std::array<CollectiveTraits, RC_COLLECTIVE_COUNT> kCollectiveTraits = {{
    {"allreduce", Extent::kVector, Whose::kAll, Extent::kVector, Whose::kAll, Combines::kAllRanks,
     false},
    {"allgather", Extent::kOwnChunk, Whose::kAll, Extent::kAllChunks, Whose::kAll,
     Combines::kNothing, false},
    {"reduce_scatter", Extent::kAllChunks, Whose::kAll, Extent::kOwnChunk, Whose::kAll,
     Combines::kAllRanks, false},
    {"broadcast", Extent::kVector, Whose::kRoot, Extent::kVector, Whose::kAllButRoot,
     Combines::kNothing, true},
    {"reduce", Extent::kVector, Whose::kAll, Extent::kVector, Whose::kRoot, Combines::kAllRanks,
     true},
    {"gather", Extent::kOwnChunk, Whose::kAll, Extent::kAllChunks, Whose::kRoot, Combines::kNothing,
     true},
    {"scatter", Extent::kAllChunks, Whose::kRoot, Extent::kOwnChunk, Whose::kAll,
     Combines::kNothing, true},
    {"alltoall", Extent::kAllChunks, Whose::kAll, Extent::kReceived, Whose::kAll,
     Combines::kNothing, false},
    {"barrier", Extent::kNone, Whose::kAll, Extent::kNone, Whose::kAll, Combines::kNothing, false},
    {"scan", Extent::kVector, Whose::kAll, Extent::kVector, Whose::kAll, Combines::kRanksUpToOwn,
     false},
    {"exscan", Extent::kVector, Whose::kAll, Extent::kVector, Whose::kAll,
     Combines::kRanksBeforeOwn, false},
}};

/// Precondition: the collective exists, which check_call() validates.
inline const CollectiveTraits& traits_of(Collective collective) {
  return kCollectiveTraits[collective];
}
inline bool is_looked_at(Whose whose, bool is_root) {
  return whose == Whose::kAll || is_root == (whose == Whose::kRoot);
}

}  // namespace ringcoll
