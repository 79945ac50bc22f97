// Which schedule a call runs, and what this rank does in it, worked out once for calls that are
// alike.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coll/call.h"
#include "coll/call_cache.h"
#include "coll/partition.h"
#include "coll/select.h"
#include "schedule/plan.h"

namespace ringcoll {

/// Where what is sent lies. kArena: it is packed. Otherwise it lies with the caller, where the plan
/// can leave it there: the transport reads it later (kLent) or copies it when it is sent (kCopied).
enum class SentFrom : uint8_t { kArena, kLent, kCopied };

/// The longest messages that links copy when they are sent, in bytes (Ends::Copying). 0: links copy
/// none.
struct CopiedMessages {
  uint64_t most = 0, most_otherwise = 0;
};

/// What a rank does in a piece, and with whom.
struct Planned {
  Plan plan;
  std::vector<Rank> peers;  // in rising order
  bool connected = false;   // to all of them; who connects says so
};

/// One thread at a time. Neither waits nor connects.
class PlanCache {
 public:
  /// `order`: the ranks in ring order; `lent_to`: by position, who can be sent the caller's memory
  /// without packing it; `copied`: what the links to these ranks copy. Throws
  /// Error(kInvalidArgument) if RINGCOLL_ALGORITHM names no schedule, or the arena is too small for
  /// the slots.
  PlanCache(Rank rank, std::vector<Rank> order, std::vector<bool> lent_to,
            const CopiedMessages& copied, Terrain terrain);

  const std::vector<Rank>& order() const { return order_; }
  /// The position of this rank.
  Rank self() const { return self_; }
  const Selector& selector() const { return selector_; }

  /// For the call that `partition` is of. References stay good until a trim().
  const Choice& choice(const Call& call, const Partition& partition);
  /// For a piece of it with these elements in each strip. `pack_all`: its input is read by packing
  /// only.
  Planned& plan(const Call& call, const ScheduleRow& row, const Partition& partition,
                std::span<const int64_t> counts, SentFrom from, bool pack_all);
  /// With no call in flight: forgets some if there are too many.
  void trim();
  /// Whether a trim() is due.
  bool full() const { return choices_.full() || plans_.full(); }
  /// How often something was forgotten, and references to it became bad.
  uint64_t trims() const { return trims_; }

 private:
  Planned make(const Call& call, const ScheduleRow& row, const Partition& partition,
               std::span<const int64_t> counts, SentFrom from, bool pack_all) const;

  const std::vector<Rank>& position() const { return selector_.terrain().positions; }

  std::vector<Rank> order_;  // position to rank
  Rank self_;
  std::vector<bool> lent_to_;
  CopiedMessages copied_;
  Selector selector_;
  CallCache<Choice> choices_;
  CallCache<Planned> plans_;
  uint64_t trims_ = 0;
  std::vector<int64_t> key_;  // a member so that its memory is kept
};

}  // namespace ringcoll
