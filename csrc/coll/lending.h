// Decides from where the messages of a call are sent. A call may lend its memory, which is then
// sent as it lies ("zero copy"). Otherwise the call is packed into the arena, or its links copy
// each message when it is sent. The decision depends on the receivers (Borrowers), on the call, and
// on its length. It also depends on which way was faster (coll/copy_ways.h), and on the memory of
// each piece. Lowering learns it as Ends, and transports learn what they may read
// (Transport::lend). docs/design.md, "Memory".
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

/// The ranks that can read the caller's memory as it lies: those on the network, or those on the
/// host if all ranks share memory.
struct Borrowers {
  std::vector<bool> at;  // by position; empty: no rank
  /// True if the borrowers are on the host. Their links read lent memory as they would read the
  /// arena. So only calls that combine nothing gain by lending, and not on all machines
  /// (CopyWays::ends_of).
  bool within_host = false;
  CopiedMessages copied;  // the messages that links to them copy

  static Borrowers of(const Communicator& comm);
};

/// Decides for one call after another. One thread at a time.
class Lending {
 public:
  /// All arguments outlive this object.
  Lending(Communicator& comm, const Borrowers& borrowers, CopyWays& ways)
      : comm_(comm), borrowers_(borrowers), ways_(ways) {}

  /// Computes what holds for all calls with the form of this one.
  void prepare(const Call& call, const Partition& partition);
  /// Decides for such a call, and lends the tensors that are long enough. Called before fragments
  /// are made of the partition. `call` outlives the decision. `in_flight`: how many earlier calls
  /// lend and have not ended. `alone`: no earlier call is in flight, so that the time this call
  /// takes is its own.
  void begin(const Call& call, Partition& partition, size_t in_flight, bool alone);
  bool lends() const { return lends_; }
  /// From where a piece with these fragments may be sent.
  SentFrom of_piece(std::span<const Fragment> fragments, const Mover& mover) const;
  /// True if a piece is lent only when is_taken_by() is true for its peers.
  bool asks_peers() const { return lends_ && borrowers_.within_host; }
  /// Whether the links to all peers take lent memory. Precondition: the peers are connected.
  bool is_taken_by(std::span<const Rank> peers) const;
  /// Reports that the call has succeeded. `packed_on_trial`: it was packed in a way under trial,
  /// which may be slow, so its time does not count.
  void end(bool packed_on_trial);

 private:
  void choose_within_host(bool alone);

  Communicator& comm_;
  const Borrowers& borrowers_;
  CopyWays& ways_;
  // These hold for all calls of one form.
  bool may_lend_ = false;
  uint64_t bytes_ = 0;  // of the longest strip
  uint64_t least_ = 0;  // the shortest tensor that is worth lending
  // These hold for the current call.
  const Call* call_ = nullptr;
  bool lends_ = false;
  FasterWay* way_ = nullptr;                   // what chose lends_; null: there was no choice
  std::optional<Clock::time_point> asked_at_;  // set if the call is timed
};

}  // namespace ringcoll
