// A call in flight: where it is in its plan, and what it waits for. The only place where steps meet
// endpoints: pieces, the pipeline, statistics and mismatches live here, for every algorithm and
// every transport. Nothing here blocks; who executes waits for what a run wants (coll/executor.h).
//
// The pipeline. A call is cut into pieces; a piece goes through the stages of its plan: stage 0
// packs and sends what round 0 sends; stage i receives what round i-1 received and sends what round
// i sends; the last stage receives and finishes. In every tick each piece in flight advances by one
// stage, the newest first. Since all ranks run the same ticks and rounds, a message is received one
// tick after it was sent, messages of a pair arrive in the order in which they are expected, and no
// rank waits for something that its peer does only after waiting for it: a receive of tick t
// depends on sends of tick t-1 alone. A send may wait for a credit. The peer gives that when it
// receives what was sent in tick t-1, which depends on nothing of tick t but what stands before in
// the tick: so no more pieces are in flight than a link has credits (kLeastCredits).
//
// Where all ranks share memory, a piece that is alone sends each message as soon as all that it
// sends is there (earliest_sends), two to a peer at most before their rounds: then all peers are
// waited for at once, and not one after another. Where ranks share cores that is worth more than a
// pipeline: pieces go one by one (Choice::one_by_one), each as if it were a call.
//
// Several calls in flight. A run may follow one that has not ended, once all pieces of that have
// begun. On each link and in each direction all messages of a call come before those of a later
// one: so a run sends to a peer when those before it have sent all that they send to it, and
// receives when they have received, and released, all from it. Nothing that a run waits for depends
// on a later one (docs/design.md, "Why nothing deadlocks").
#pragma once

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

/// What a run cannot go on without.
struct Want {
  enum class What : uint8_t {
    kMessage,     // of the peer, on the link
    kCredit,      // for one more to the peer
    kCompletion,  // of what was sent to the peer: its memory is to be written again
    kLinks,       // to the peers of `planned`
    kTurn,        // of the runs before it
  };
  What what = What::kMessage;
  Rank peer = kNobody;
  Endpoint* link = nullptr;
  Planned* planned = nullptr;
  std::byte* place = nullptr;  // kMessage: as for Endpoint::try_recv
  uint64_t bytes = 0;          // of it, or that the peer has to copy until then
};

/// One thread at a time. One object for call after call: memory and what was worked out are kept.
class Run {
 public:
  /// All outlive it.
  Run(Communicator& comm, PlanCache& plans, Slots& slots, CopyWays& ways,
      const Borrowers& borrowers);

  /// The call, which outlives the run, is the `sequence`-th. After the one that this
  /// object ran before has ended or was abandoned. `before`: the run of the call before, which may
  /// be followed; null: it has ended.
  void begin(const Call& call, uint64_t sequence, const Run* before = nullptr);
  /// Whether the next call may begin though this one has not ended.
  bool may_be_followed() const { return started_ == choice_->pieces && !plans_.full(); }
  /// The runs before it have ended.
  void be_first() { before_ = nullptr; }
  /// Goes on as far as it can. True: it has ended, outputs are complete, and nobody reads the
  /// caller's memory; a message may still be queued at a link. False: it cannot go on without what
  /// want() says; asked again, it looks again. Throws Error.
  bool advance();
  const Want& want() const { return want_; }
  /// For who polls, so that it loses little time: receives the message that is wanted into view(),
  /// and says so.
  View& view() { return view_; }
  void take_view();
  /// Grows whenever anything was done, so that a wait sees that it is another one.
  uint64_t progress() const { return progress_; }
  /// After an error: the call's memory is not used any more.
  void abandon();
  /// Since begin().
  const Signature& signature() const { return signature_; }
  /// The call that a message is of which was not of this one, and so ended it.
  const std::optional<Made>& intruder() const { return intruder_; }
  /// "allreduce #7 of 4 float32 …"
  std::string doing() const { return describe(signature_); }
  const Call& call() const { return *call_; }

 private:
  struct Piece {
    int64_t start = 0;  // tick of its stage 0
    int64_t index = 0;
    Planned* planned = nullptr;
    Slot* slot = nullptr;              // null: not begun
    SentFrom from = SentFrom::kArena;  // where it may be sent from (Lending::of_piece)
    bool moved = false;                // what this rank has for itself
    std::vector<Fragment> fragments;
    std::vector<Sent> sent;  // by round
    PieceMemory memory;

    const Plan& plan() const { return planned->plan; }
    size_t rounds() const { return planned->plan.actions.size(); }
  };
  void prepare();
  /// What messages say of the call.
  Envelope envelope() const { return Envelope::of(signature_); }
  int64_t most_in_flight() const {
    return choice_->one_by_one ? 1 : pieces_in_flight(static_cast<int64_t>(slots_.size()));
  }
  size_t index_of(int64_t piece) const {
    return choice_->one_by_one ? 0 : static_cast<size_t>(piece) % pieces_.size();
  }
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
  enum class Way : uint8_t { kSend, kReceive };
  bool has_left(Way way, Rank peer) const;
  bool has_left(Way way, Rank peer, const Piece& piece, size_t round) const;
  bool is_turn(Way way, Rank peer);
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

  // The call.
  const Call* call_ = nullptr;
  const Run* before_ = nullptr;
  uint64_t trims_ = 0;  // of the plans, when it began
  Signature signature_;
  Partition partition_;
  std::optional<Mover> mover_;
  const Choice* choice_ = nullptr;
  uint64_t form_ = 0;            // of the call that the following were worked out for; 0: none
  Planned* repeated_ = nullptr;  // the plan of a call in one piece
  SentFrom repeated_from_ = SentFrom::kArena;
  std::vector<Sent> lent_;  // the last one from the caller's memory, of each link
  std::vector<int64_t> counts_;

  // Where it is: pieces [finished_, started_) are in flight, `at_` is the one whose turn it is.
  std::vector<Piece> pieces_;
  int64_t tick_ = 0, started_ = 0, finished_ = 0, next_start_ = 0, at_ = 0;
  bool sends_early_ = false;
  size_t next_send_ = 0;  // of Plan::sends, if it does
  bool in_tick_ = false;
  bool received_ = false;  // the piece whose turn it is has what its stage receives,
  bool has_view_ = false;  // or of that the message, and its receipts up to `receipt_`
  size_t receipt_ = 0;
  View view_;
  Endpoint* view_link_ = nullptr;
  std::optional<Made> intruder_;
  Want want_;
  uint64_t progress_ = 0;
};

}  // namespace ringcoll
