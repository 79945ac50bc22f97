// A call in flight: its place in its plan, and what it waits for. Only here do steps meet
// endpoints. So pieces, the pipeline, statistics and mismatches are written once, for all
// algorithms and transports. Nothing here blocks: the executor waits for what a run wants
// (coll/executor.h).
//
// The pipeline. A call is cut into pieces, and a piece passes through the stages of its plan. Stage
// 0 packs, and sends round 0. Stage i receives round i-1 and sends round i. The last stage receives
// and finishes. In every tick each piece in flight advances by one stage, the newest first. All
// ranks run the same ticks and rounds, so a message is received one tick after it was sent. The
// messages of a pair arrive in the order in which they are expected. A receive of tick t depends on
// sends of tick t-1 alone, so ranks cannot wait for one another in a circle. A send may wait for a
// credit. The peer gives it when it receives what was sent in tick t-1, which in tick t depends
// only on operations earlier in the tick. So no more pieces are in flight than a link has credits
// (kLeastCredits).
//
// Early sends. If all ranks share memory, a piece that is alone sends each message as soon as it
// has the message's data (earliest_sends). At most two messages to a peer leave before their
// rounds. The rank then waits for all peers at once, and not for one after another.
//
// Several calls in flight. A run may begin when all pieces of the run before have begun. On each
// link and in each direction, all messages of a call come before those of a later call. So a run
// sends to a peer when all earlier runs have sent all their messages to it. It receives from a peer
// when they have received and released all messages from it. No run waits for a later run
// (docs/design.md, "Why nothing deadlocks").
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coll/call.h"
#include "coll/copy_ways.h"
#include "coll/lending.h"
#include "coll/mismatch.h"
#include "coll/mover.h"
#include "coll/partition.h"
#include "coll/plan_cache.h"
#include "coll/slots.h"
#include "comm/communicator.h"

namespace ringcoll {

/// What a run needs before it can continue.
struct Want {
  enum class What : uint8_t {
    kMessage,     // a message of the peer, on the link
    kCredit,      // a credit for one more message to the peer
    kCompletion,  // completion of a send to the peer, whose memory is needed again
    kLinks,       // channels to the peers of `planned`
    kTurn,        // progress of earlier runs
  };
  What what = What::kMessage;
  Rank peer = kNobody;
  Endpoint* link = nullptr;
  Planned* planned = nullptr;
  std::byte* place = nullptr;  // kMessage: for Endpoint::try_recv
  uint64_t bytes = 0;          // kMessage: its length; kCompletion: what the peer still copies
};

/// Runs one call after another, and keeps memory and results from call to call. One thread at a
/// time.
class Run {
 public:
  /// All arguments outlive this object.
  Run(Communicator& comm, PlanCache& plans, Slots& slots, CopyWays& ways,
      const Borrowers& borrowers);

  /// Begins a call, which outlives the run. `sequence` is its number. Precondition: the previous
  /// call of this object has ended or was abandoned. `before`: the run of the call before, for
  /// which may_be_followed() is true; null: that call has ended.
  void begin(const Call& call, uint64_t sequence, const Run* before = nullptr);
  /// Whether the next call may begin before this one has ended.
  bool may_be_followed() const { return started_ == choice_->pieces && !plans_.full(); }
  /// Reports that all earlier runs have ended.
  void be_first() { before_ = nullptr; }
  /// Advances as far as possible without waiting. True: the call has ended, outputs are complete,
  /// and nobody reads the caller's memory. Messages may still be queued at a link. False: it needs
  /// what want() says, and the caller tries again later. Throws Error.
  bool advance();
  const Want& want() const { return want_; }
  /// A caller that polls for the wanted message may itself receive it into view(), to save time. It
  /// then calls take_view().
  View& view() { return view_; }
  void take_view();
  /// Grows with every step that is done. So a wait notices that it has become another wait.
  uint64_t progress() const { return progress_; }
  /// Ends the call after an error. The run does not use the call's memory any more.
  void abandon();
  /// Valid after begin().
  const Signature& signature() const { return signature_; }
  /// The call of the peer whose message did not match this call, and ended it with an error.
  const std::optional<Made>& intruder() const { return intruder_; }
  /// Text such as "allreduce #7 of 4 float32, sum".
  std::string doing() const { return describe(signature_); }
  const Call& call() const { return *call_; }

 private:
  struct Piece {
    int64_t start = 0;  // the tick of its stage 0
    int64_t index = 0;
    Planned* planned = nullptr;
    Slot* slot = nullptr;              // null: the piece has not begun
    SentFrom from = SentFrom::kArena;  // from where it is sent (Lending::of_piece)
    bool moved = false;                // move_own() is done
    std::vector<Fragment> fragments;
    std::vector<Sent> sent;  // by round
    PieceMemory memory;

    const Plan& plan() const { return planned->plan; }
    size_t rounds() const { return planned->plan.actions.size(); }
  };
  void prepare();
  /// The envelope of the call's messages.
  Envelope envelope() const { return Envelope::of(signature_); }
  int64_t most_in_flight() const {
    return std::min(choice_->pieces, pieces_in_flight(static_cast<int64_t>(slots_.size())));
  }
  size_t index_of(int64_t piece) const { return static_cast<size_t>(piece) % pieces_.size(); }
  Piece& piece(int64_t index) { return pieces_[index_of(index)]; }
  size_t stage_of(const Piece& piece) const { return static_cast<size_t>(tick_ - piece.start); }
  bool begin_tick();
  void end_tick();
  bool begin(Piece& piece);
  static void end(Piece& piece);
  void give_memory(Piece& piece);
  bool advance(Piece& piece);
  bool move_own(Piece& piece);
  bool receive(Piece& piece, size_t round);
  bool fold_own(Piece& piece, const Action& action);
  bool send_all_that_may(Piece& piece, size_t round);
  bool send(Piece& piece, size_t round);
  Rank receives_from(const Piece& piece, size_t round) const;
  void expect(Piece& piece, size_t round);
  std::byte* place_for(const Piece& piece, const Action& action) const;
  void note_kept(Piece& piece, size_t round, const Sent& sent);
  bool completed(const Sent& sent);
  bool all_completed(std::vector<Sent>& sent);
  bool wants(Want::What what, Rank peer, Endpoint& link, uint64_t bytes = 0);
  enum class Direction : uint8_t { kSend, kReceive };
  bool has_left(Direction direction, Rank peer) const;
  bool has_left(Direction direction, Rank peer, const Piece& piece, size_t round) const;
  bool is_turn(Direction direction, Rank peer);
  bool expect_tick();
  size_t lending_before() const;
  Planned& planned_for(Piece& piece);
  Planned& plan_of_counts(SentFrom from);
  uint64_t try_send(Endpoint& link, const Piece& piece, const Action& action, bool copies);
  void check_view(Rank peer, uint64_t expected_bytes);

  Communicator& comm_;
  PlanCache& plans_;
  Slots& slots_;
  CopyWays& ways_;
  Lending lending_;

  // The state of the call.
  const Call* call_ = nullptr;
  const Run* before_ = nullptr;
  uint64_t trims_ = 0;  // PlanCache::trims() when the call began
  Signature signature_;
  Partition partition_;
  std::optional<Mover> mover_;
  const Choice* choice_ = nullptr;
  uint64_t form_ = 0;            // Call::form for which the next members are valid; 0: none
  Planned* repeated_ = nullptr;  // the plan of a call in one piece
  SentFrom repeated_from_ = SentFrom::kArena;
  std::vector<Sent> lent_;  // for each link, the last message sent from the caller's memory
  std::vector<int64_t> counts_;

  // Progress: pieces [finished_, started_) are in flight, and `at_` advances now.
  std::vector<Piece> pieces_;
  int64_t tick_ = 0, started_ = 0, finished_ = 0, next_start_ = 0, at_ = 0;
  bool sends_early_ = false;
  size_t next_send_ = 0;  // the next one of Plan::sends, if sends_early_
  bool in_tick_ = false;
  bool received_ = false;  // piece `at_` has received all of its stage,
  bool has_view_ = false;  // or has its message, and receipts before `receipt_` are done
  size_t receipt_ = 0;
  View view_;
  Endpoint* view_link_ = nullptr;
  std::optional<Made> intruder_;
  Want want_;
  uint64_t progress_ = 0;
};

}  // namespace ringcoll
