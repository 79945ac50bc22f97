// Whether a call lends its memory, so that it is sent as it lies ("zero copy"). Otherwise the call
// is packed into the arena, or its links copy each message when it is sent. This is the one place
// that decides: by who receives the data (Borrowers), by what the call is and how long, by which
// way was faster (coll/copy_ways.h), and piece by piece by how it lies. A plan is told (Ends);
// transports learn what they may read (Transport::lend). docs/design.md, "Memory".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "coll/call.h"
#include "coll/copy_ways.h"
#include "coll/mover.h"
#include "coll/partition.h"
#include "coll/plan_cache.h"
#include "comm/communicator.h"

namespace ringcoll {

/// Who of a communicator can be sent the caller's memory as it lies: those on the network or, where
/// there is none, those on the host.
struct Borrowers {
  std::vector<bool> at;  // by position; empty: nobody
  /// By links of the host, which read it where they would read the arena. So of what is lent, only
  /// what is not combined with anything gains by it, and that not on all machines
  /// (CopyWays::ends_of).
  bool within_host = false;
  CopiedMessages copied;  // what links to them copy when it is sent

  static Borrowers of(const Communicator& comm);
};

/// Of one call after another. One thread at a time.
class Lending {
 public:
  /// All outlive it.
  Lending(Communicator& comm, const Borrowers& borrowers, CopyWays& ways)
      : comm_(comm), borrowers_(borrowers), ways_(ways) {}

  /// For calls like this one: what follows from how long they are.
  void prepare(const Call& call, const Partition& partition);
  /// Decides for such a call, which outlives the decision, and lends what is worth it, before
  /// fragments are made of the partition. `in_flight`: how many calls before it lend and have not
  /// ended; `alone`: none has not, so that the time that it takes is its own.
  void begin(const Call& call, Partition& partition, size_t in_flight, bool alone);
  bool lends() const { return lends_; }
  /// Where a piece that lies so may be sent from.
  SentFrom of_piece(std::span<const Fragment> fragments, const Mover& mover) const;
  /// Whether peers have to agree, who do when they are connected.
  bool asks_peers() const { return lends_ && borrowers_.within_host; }
  bool is_taken_by(std::span<const Rank> peers) const;
  /// The call has ended well. `packed_on_trial`: it was packed in a way that may be far from the
  /// fastest, and what it took says nothing of packing.
  void end(bool packed_on_trial);

 private:
  void choose_within_host(bool alone);

  Communicator& comm_;
  const Borrowers& borrowers_;
  CopyWays& ways_;
  // Of calls like this one.
  bool may_lend_ = false;
  uint64_t bytes_ = 0;  // of the longest strip
  uint64_t least_ = 0;  // that are worth lending
  // Of this one.
  const Call* call_ = nullptr;
  bool lends_ = false;
  FasterWay* way_ = nullptr;  // that has chosen so, or not; null: there was no choice
  std::optional<Clock::time_point> asked_at_;  // how long it takes is asked for
};

}  // namespace ringcoll
