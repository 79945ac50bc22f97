// Which ways to move its data a rank has to choose from (docs/design.md, "Copies"). One thread at a
// time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/faster_way.h"
#include "base/types.h"

namespace ringcoll {

/// How a rank moves what it packs, combines and sends: processors differ in which is the fastest
/// way, and so do distances between cores.
struct CopyWays {
  /// Of a call that only copies, within a host.
  enum End : size_t { kFromCaller, kFromArena };
  enum Store : size_t { kThroughCaches, kPastCaches };
  enum Fetch : size_t { kInOrder, kFromFourPages, kInOrderPastCaches, kFetches };

  /// `by_cores`: whoever reads what is packed is a core, not a card or the kernel, and each rank
  /// has one of its own, without which times say who was run when.
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

  /// Of End, for messages of about so many bytes, by what the call takes.
  FasterWay& ends_of(Collective collective, uint64_t bytes) {
    return ends_[collective].about(bytes);
  }
  // Of Store: to the arena, from caches.
  FasterWay pack{{.weights = {1}, .least_bytes = kLeastPacked}};
  // Of Fetch.
  FasterWay pack_from_memory{{.weights = {1, 1}, .least_bytes = kLeastFetched}};
  FasterWay combine_from_memory{{.weights = {1, 1}, .least_bytes = kLeastFetched}};

 private:
  // The first time, ways to pack are tried meanwhile, as long each, of pieces that are no longer
  // than this; what a call takes says nothing until then.
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

  // A peer that finds nothing in this core's caches reads from memory, which this rank does not
  // see: near, 16 KiB are packed past the caches in 0.33 us and through them in 0.45, and the call
  // takes twice as long (AMD's family 25, model 17). Far, packing alone differs many times over.
  static constexpr double kOfPastFromCaches = 3, kOfPastFromMemory = 2;
  static constexpr uint64_t kLeastPacked = 8 << 10, kLeastFetched = 32 << 10;
  // What a copy costs depends on how its place was written before. After so many bytes all places
  // of the arena have been written in the way that is tried.
  static constexpr uint64_t kTurnBytes = 4 << 20;
  // Trials cost less than a hundredth of the first, and some hundredths of the second, which is
  // shorter, since what a store past the caches takes does not tell that it is not needed any more.
  static constexpr uint64_t kRestBytes = uint64_t{1} << 30, kRestOfPastBytes = 256 << 20;
};

}  // namespace ringcoll
