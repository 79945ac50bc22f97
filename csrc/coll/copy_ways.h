// The alternatives from which a rank chooses how it moves data (docs/design.md, "Copies"). One
// thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/faster_way.h"
#include "base/types.h"

namespace ringcoll {

/// How a rank packs, combines and sends. Which way is fastest depends on the processor and on the
/// distance between cores.
struct CopyWays {
  /// Where the messages of a call that only copies within a host come from.
  enum End : size_t { kFromCaller, kFromArena };
  enum Store : size_t { kThroughCaches, kPastCaches };
  enum Fetch : size_t { kInOrder, kFromFourPages, kInOrderPastCaches, kFetches };

  /// `by_cores`: cores read what is packed, not a card or the kernel, and each rank has a core of
  /// its own. Only then are stores past the caches tried, since times would otherwise show how
  /// ranks were scheduled.
  explicit CopyWays(bool by_cores) {
    if (!by_cores) return;
    pack = FasterWay({{1, kOfPastFromCaches},
                      kLeastPacked,
                      kTurnBytes,
                      kTurnBytes,
                      kRestBytes,
                      kRestOfPastBytes});
    pack_from_memory = FasterWay({{1, 1, kOfPastFromMemory},
                                  kLeastFetched,
                                  kTurnBytes,
                                  kTurnBytes,
                                  kRestBytes,
                                  kRestOfPastBytes});
  }

  /// Chooses an End for calls whose longest strip has about `bytes`, by the time of whole calls.
  FasterWay& ends_of(Collective collective, uint64_t bytes) {
    return ends_[collective].about(bytes);
  }
  // Chooses a Store: how data that is in caches is packed into the arena.
  FasterWay pack{{.weights = {1}, .least_bytes = kLeastPacked}};
  // These choose a Fetch, for data that is in no cache.
  FasterWay pack_from_memory{{.weights = {1, 1}, .least_bytes = kLeastFetched}};
  FasterWay combine_from_memory{{.weights = {1, 1}, .least_bytes = kLeastFetched}};

 private:
  // The ways to pack are tried first, and until they have settled, the time of a call says nothing.
  // So the first warm-up is long enough for those trials, with pieces of at most this length.
  static constexpr uint64_t kMostOfAPiece = 1 << 20;
  static FasterWay ends_about(uint64_t bytes) {
    uint64_t of_packing = kTurnBytes + FasterWay::kTrials * std::min(bytes, kMostOfAPiece);
    uint64_t warm_up = warm_up_bytes_of(bytes);
    return FasterWay({.weights = {1, 1},
                      .first_warm_up_bytes = warm_up + kFetches * of_packing,
                      .warm_up_bytes = warm_up,
                      .rest_bytes = rest_bytes_of(bytes),
                      .rest_of_others_bytes = rest_bytes_of(bytes)});
  }
  struct EndsBySize : FasterWayBySize {
    EndsBySize() : FasterWayBySize(ends_about) {}
  };
  std::array<EndsBySize, RC_COLLECTIVE_COUNT> ends_;

  // Factors on the time of stores past the caches. After such a store the peer reads from memory,
  // and this rank does not see that cost. Between near cores, packing 16 KiB that way takes a
  // quarter less time, but the call takes twice as long (AMD family 25, model 17). Between far
  // cores the times of packing differ by more than these factors.
  static constexpr double kOfPastFromCaches = 3, kOfPastFromMemory = 2;
  static constexpr uint64_t kLeastPacked = 8 << 10, kLeastFetched = 32 << 10;
  // The cost of a copy depends on how its destination was written before. After so many bytes, all
  // of the arena has been written in the way under trial.
  static constexpr uint64_t kTurnBytes = 4 << 20;
  // With the first rest, trials take less than 1 % of the time. With the second they take some
  // percent. It is shorter, because the time of stores past the caches does not show when they stop
  // being useful.
  static constexpr uint64_t kRestBytes = uint64_t{1} << 30, kRestOfPastBytes = 256 << 20;
};

}  // namespace ringcoll
