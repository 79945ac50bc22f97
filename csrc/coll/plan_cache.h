// Computes the schedule of a call and this rank's plan once, and keeps them for calls that are
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

/// Where the messages of a piece lie. kArena: they are packed. Otherwise a message stays in the
/// caller's memory if the plan permits. The transport reads it there later (kLent), or copies it
/// when it is sent (kCopied).
enum class SentFrom : uint8_t { kArena, kLent, kCopied };

/// The longest messages, in bytes, that links copy when they are sent (Ends::Copying). 0: none.
struct CopiedMessages {
  uint64_t most = 0, most_otherwise = 0;
};

/// A plan for a piece, and the peers it needs.
struct Planned {
  Plan plan;
  std::vector<Rank> peers;  // in rising order
  bool connected = false;   // to all peers; set by the code that connects
};

/// One thread at a time. No method waits or connects.
class PlanCache {
 public:
  /// `order`: the ranks in ring order. `lent_to`: by position, the ranks that can be sent the
  /// caller's memory without packing. `copied`: what the links to these ranks copy. Throws
  /// Error(kInvalidArgument) if RINGCOLL_ALGORITHM names no schedule, or the arena is too small for
  /// the slots.
  PlanCache(Rank rank, std::vector<Rank> order, std::vector<bool> lent_to,
            const CopiedMessages& copied, Terrain terrain);

  const std::vector<Rank>& order() const { return order_; }
  /// The position of this rank.
  Rank self() const { return self_; }
  const Selector& selector() const { return selector_; }

  /// The choice for a call and its partition. References stay valid until trim().
  const Choice& choice(const Call& call, const Partition& partition);
  /// The plan for a piece with these elements in each strip. `pack_all`: only packing reads the
  /// input. References stay valid until trim().
  Planned& plan(const Call& call, const ScheduleRow& row, const Partition& partition,
                std::span<const int64_t> counts, SentFrom from, bool pack_all);
  /// Forgets the less recently used entries if there are too many. Precondition: no call is in
  /// flight.
  void trim();
  /// Whether a trim() is due.
  bool full() const { return choices_.full() || plans_.full(); }
  /// How often trim() has forgotten entries, which makes references invalid.
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
  std::vector<int64_t> key_;  // a member, to keep its allocated memory
};

}  // namespace ringcoll
