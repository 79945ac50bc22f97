#include "coll/run.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ringcoll {
Run::Run(Communicator& comm, PlanCache& plans, Slots& slots, CopyWays& ways,
         const Borrowers& borrowers)
    : comm_(comm),
      plans_(plans),
      slots_(slots),
      ways_(ways),
      lending_(comm, borrowers, ways),
      pieces_(slots.size()) {}

// Training steps repeat their calls. For a call of the same form, the results of prepare() are
// kept.
void Run::begin(const Call& call, uint64_t sequence, const Run* before) {
  call_ = &call;
  before_ = before;
  tick_ = started_ = finished_ = next_start_ = 0;
  if (!before) plans_.trim();
  if (std::exchange(trims_, plans_.trims()) != plans_.trims())
    form_ = 0;  // choice_ and repeated_ refer to what was trimmed
  if (call.form != 0 && call.form == form_) {
    signature_.sequence = static_cast<uint32_t>(sequence);
    if (!call.buffers.empty()) partition_.replace(call.buffers[0]);
  } else {
    signature_ = signature_of(call, comm_.size(), sequence);
    prepare();
  }
  sends_early_ = false;
  lending_.begin(call, partition_, lending_before(), !before);
}

// How many earlier runs lend memory.
size_t Run::lending_before() const {
  size_t count = 0;
  for (const Run* run = before_; run; run = run->before_) count += run->lending_.lends();
  return count;
}

void Run::abandon() {
  lent_.clear();
  form_ = 0;
  for (Piece& piece : pieces_) end(piece);
  in_tick_ = received_ = has_view_ = false;
  before_ = nullptr;
}

void Run::end(Piece& piece) {
  if (piece.slot) Slots::give_back(*piece.slot);
  piece.slot = nullptr;
}

// True if this call has messages left to send to the peer, or to receive from it. In a tick the
// newest piece advances first. A message counts as received when it is released.
bool Run::has_left(Direction direction, Rank peer) const {
  if (started_ < choice_->pieces) return true;
  for (int64_t k = finished_; k < started_; k++) {
    const Piece& piece = pieces_[index_of(k)];
    bool advanced = in_tick_ && k > at_, received = in_tick_ && k == at_ && received_;
    size_t round = stage_of(piece) + advanced;  // of its next send
    if (direction == Direction::kReceive && round > 0 && !received) round--;
    if (has_left(direction, peer, piece, round)) return true;
  }
  return false;
}

// The same for one piece, from `round` on.
bool Run::has_left(Direction direction, Rank peer, const Piece& piece, size_t round) const {
  const auto& actions = piece.plan().actions;
  if (direction == Direction::kSend && sends_early_) {
    std::span left = std::span(piece.plan().sends).subspan(next_send_);
    return std::ranges::any_of(left, [&](const EarliestSend& send) {
      return plans_.order()[actions[send.round].send_to] == peer;
    });
  }
  for (; round < actions.size(); round++) {
    Rank position =
        direction == Direction::kSend ? actions[round].send_to : actions[round].recv_from;
    if (position != kNobody && plans_.order()[position] == peer) return true;
  }
  return false;
}

bool Run::is_turn(Direction direction, Rank peer) {
  for (const Run* run = before_; run; run = run->before_)
    if (run->has_left(direction, peer)) {
      want_ = {.what = Want::What::kTurn};
      return false;
    }
  return true;
}

void Run::prepare() {
  form_ = 0;  // in case one of these throws
  partition_.reset(*call_, comm_.rank(), plans_.order());
  choice_ = &plans_.choice(*call_, partition_);
  mover_.emplace(*call_, comm_.counters(), ways_);
  lending_.prepare(*call_, partition_);
  repeated_ = nullptr;
  form_ = call_->form;
}

bool Run::advance() {
  while (finished_ < choice_->pieces) {
    if (!in_tick_ && !begin_tick()) return false;
    for (; at_ >= finished_; at_--)
      if (!advance(piece(at_))) return false;
    end_tick();
  }
  if (!all_completed(lent_)) return false;  // until then, others read the caller's memory
  if (traits_of(call_->collective).excludes_own() && comm_.rank() == 0) Mover::fill_neutral(*call_);
  lending_.end(mover_->has_tried());
  return true;
}

bool Run::begin_tick() {
  const int64_t most = most_in_flight();
  if (started_ < choice_->pieces && started_ - finished_ < most && tick_ >= next_start_) {
    Piece& next = piece(started_);
    if (!begin(next)) return false;
    next.start = tick_;
    started_++;
    next_send_ = 0;
    sends_early_ = most == 1 && !next.plan().sends.empty() && comm_.group().one_domain();
    // Pieces are spread over the rounds. So in every tick some pieces cross the network and some do
    // not.
    auto rounds = static_cast<int64_t>(next.rounds());
    next_start_ = tick_ + (most == 1 ? rounds : std::max<int64_t>(1, (rounds + most - 1) / most));
  }
  if (comm_.group().wants_places() && !expect_tick()) return false;
  at_ = started_ - 1;
  in_tick_ = true;
  return true;
}

// Announces what the pieces in flight receive in the next tick, in the order of those receives. It
// announces all of it, or nothing if earlier runs come first.
bool Run::expect_tick() {
  if (before_)
    for (int64_t k = started_ - 1; k >= finished_; k--) {
      Rank from = receives_from(piece(k), stage_of(piece(k)));
      if (from != kNobody && !is_turn(Direction::kReceive, from)) return false;
    }
  for (int64_t k = started_ - 1; k >= finished_; k--) expect(piece(k), stage_of(piece(k)));
  return true;
}

void Run::end_tick() {
  for (; finished_ < started_; finished_++) {
    Piece& oldest = piece(finished_);
    if (stage_of(oldest) < oldest.rounds()) break;
    end(oldest);
  }
  in_tick_ = false;
  tick_++;
}

// A piece begins when it has a plan, channels to all its peers, and a slot whose former content
// nobody reads.
bool Run::begin(Piece& piece) {
  if (!piece.slot) {
    piece.slot = slots_.take();
    if (!piece.slot) {  // earlier pieces have all slots
      want_ = {.what = Want::What::kTurn};
      return false;
    }
    // This runs once for each piece: planned_for() sets repeated_, which tells that the piece of
    // the next call can be like this one.
    piece.index = started_;
    if (repeated_ && !lending_.lends())
      partition_.readdress(piece.fragments, call_->buffers);
    else
      partition_.fragments_of(piece.index, choice_->stretch, &piece.fragments);
    piece.from = lending_.of_piece(piece.fragments, *mover_);
    piece.planned = &planned_for(piece);
  }
  if (!piece.planned->connected) {
    want_ = {.what = Want::What::kLinks, .planned = piece.planned};
    return false;
  }
  if (!all_completed(piece.slot->unread)) return false;
  give_memory(piece);
  progress_++;
  return true;
}

void Run::give_memory(Piece& piece) {
  size_t elements = piece.fragments.empty() ? 0 : static_cast<size_t>(piece.fragments.back().end());
  auto banks = slots_.place_for(*piece.slot, elements * mover_->element_bytes());
  piece.moved = false;
  piece.sent.assign(piece.rounds(), {});
  piece.memory = {piece.fragments, banks};
  for (const Packing& packing : piece.plan().pack) mover_->pack(piece.memory, packing);
}

Planned& Run::planned_for(Piece& piece) {
  if (repeated_ && repeated_from_ == piece.from) return *repeated_;
  partition_.counts_of(piece.index, choice_->stretch, &counts_);
  bool asks = piece.from == SentFrom::kLent && lending_.asks_peers();
  if (asks) {  // peers can be asked when they are connected
    const Planned& packed = plan_of_counts(SentFrom::kArena);
    if (!packed.connected || !lending_.is_taken_by(packed.peers)) piece.from = SentFrom::kArena;
  }
  Planned& planned = plan_of_counts(piece.from);
  planned.connected |= asks && piece.from == SentFrom::kLent;  // this plan has the same peers
  if (choice_->pieces == 1) {
    repeated_ = &planned;
    repeated_from_ = piece.from;
  }
  return planned;
}

Planned& Run::plan_of_counts(SentFrom from) {
  return plans_.plan(*call_, *choice_->row, partition_, counts_, from, mover_->pack_all());
}

bool Run::advance(Piece& piece) {
  size_t stage = stage_of(piece), rounds = piece.rounds();
  if (stage > rounds) return true;
  if (stage > 0 && !received_ && !receive(piece, stage - 1)) return false;
  received_ = true;
  bool sent =
      sends_early_ ? send_all_that_may(piece, stage) : stage == rounds || send(piece, stage);
  if (!sent) return false;
  received_ = false;
  if (stage == rounds) move_own(piece);
  return true;
}

// Copies this rank's own part to its output, once, and preferably while it would wait for peers.
// True if this call copied anything.
bool Run::move_own(Piece& piece) {
  if (std::exchange(piece.moved, true)) return false;
  for (const Move& move : piece.plan().moves) mover_->move_own(piece.memory, move);
  return !piece.plan().moves.empty();
}

// Returns kNobody if the piece receives nothing from a peer in that round.
Rank Run::receives_from(const Piece& piece, size_t round) const {
  if (round >= piece.rounds()) return kNobody;
  Rank from = piece.plan().actions[round].recv_from;
  return from == kNobody || from == plans_.self() ? kNobody : plans_.order()[from];
}

void Run::expect(Piece& piece, size_t round) {
  Rank from = receives_from(piece, round);
  if (from == kNobody) return;
  const Action& action = piece.plan().actions[round];
  comm_.channel(from).expect(place_for(piece, action), action.recv.count * mover_->element_bytes());
}

// Where a transport may put what it receives: at its final place, if the data needs no combining
// and the place need not wait for a completion.
std::byte* Run::place_for(const Piece& piece, const Action& action) const {
  bool single = action.receipts.size() == 1 && action.receipts[0].after < 0;
  return single ? mover_->place_for(piece.memory, action.receipts[0]) : nullptr;
}

// At most kMostAhead + 1 messages of the piece are under way to a peer. The peer has room for them
// once it has received those of earlier pieces and calls, which do not depend on this piece. So
// ranks cannot wait for one another in a circle.
bool Run::send_all_that_may(Piece& piece, size_t round) {
  const auto& sends = piece.plan().sends;
  for (; next_send_ < sends.size() && sends[next_send_].earliest <= round; next_send_++)
    if (!send(piece, sends[next_send_].round)) return false;
  return true;
}

bool Run::send(Piece& piece, size_t round) {
  const Action& action = piece.plan().actions[round];
  if (action.send_to == kNobody) return true;
  Rank peer = plans_.order()[action.send_to];
  if (before_ && !is_turn(Direction::kSend, peer)) return false;
  Endpoint& link = comm_.channel(peer);
  bool from_caller = action.send_from == Storage::kInput || action.send_from == Storage::kOutput;
  bool copies = from_caller && piece.from == SentFrom::kCopied;
  uint64_t bytes = action.send.count * mover_->element_bytes();
  uint64_t number = try_send(link, piece, action, copies);
  if (number == 0) {
    link.progress();
    number = try_send(link, piece, action, copies);
  }
  if (number == 0) return wants(Want::What::kCredit, peer, link);
  progress_++;
  comm_.counters().messages_sent += 1;
  comm_.counters().bytes_sent += bytes;
  if (copies)
    comm_.counters().bytes_sent_copied += bytes;
  else
    note_kept(piece, round, {&link, peer, number, bytes});
  return true;
}

uint64_t Run::try_send(Endpoint& link, const Piece& piece, const Action& action, bool copies) {
  uint64_t bytes = action.send.count * mover_->element_bytes();
  if (copies)
    return comm_.channels()
        .host_link(plans_.order()[action.send_to])
        ->try_copy(envelope(), mover_->slices(piece.memory, action.send_from, action.send), bytes);
  return link.try_send(envelope(),
                       mover_->source(piece.memory, action.send_from, action.send.first), bytes);
}

// Remembers a message whose memory must not be written until `sent` is complete.
void Run::note_kept(Piece& piece, size_t round, const Sent& sent) {
  const Action& action = piece.plan().actions[round];
  bool lent = action.send_from == Storage::kInput || action.send_from == Storage::kOutput;
  if (lent) comm_.counters().bytes_sent_zero_copy += sent.bytes;
  if (sent.complete()) return;
  if (!lent) {
    piece.sent[round] = sent;
    piece.slot->unread.push_back(sent);
    return;
  }
  auto before = std::ranges::find(lent_, sent.link, &Sent::link);
  if (before == lent_.end())
    lent_.push_back(sent);
  else
    *before = sent;
}

bool Run::receive(Piece& piece, size_t round) {
  const Action& action = piece.plan().actions[round];
  if (action.recv_from == kNobody) return true;
  if (action.recv_from == plans_.self()) return fold_own(piece, action);
  if (!has_view_) {
    Rank peer = plans_.order()[action.recv_from];
    if (before_ && !is_turn(Direction::kReceive, peer)) return false;
    want_.what = Want::What::kMessage;
    want_.peer = peer;
    want_.link = &comm_.channel(peer);
    want_.place = place_for(piece, action);
    want_.bytes = action.recv.count * mover_->element_bytes();
    auto try_recv = [&] { return want_.link->try_recv(want_.place, want_.bytes, &view_); };
    if (!try_recv() && (!move_own(piece) || !try_recv())) return false;
    take_view();
  }
  for (; receipt_ < action.receipts.size(); receipt_++, progress_++) {
    const Receipt& receipt = action.receipts[receipt_];
    if (receipt.after >= 0 && !completed(piece.sent[receipt.after])) return false;
    const std::byte* data =
        view_.data + (receipt.range.first - action.recv.first) * mover_->element_bytes();
    bool own_first = receipt.combine == Combine::kFold || plans_.self() < action.recv_from;
    mover_->apply(piece.memory, receipt, data, own_first);
  }
  view_link_->release();
  has_view_ = false;
  return true;
}

bool Run::fold_own(Piece& piece, const Action& action) {
  for (const Receipt& receipt : action.receipts)
    mover_->fold_own(piece.memory, receipt, action.own_input);
  progress_++;
  return true;
}

void Run::take_view() {
  view_link_ = want_.link;
  check_view(want_.peer, want_.bytes);
  comm_.counters().bytes_received += want_.bytes;
  has_view_ = true;
  receipt_ = 0;
  progress_++;
}

bool Run::all_completed(std::vector<Sent>& sent) {
  for (; !sent.empty(); sent.pop_back(), progress_++)
    if (!completed(sent.back())) return false;
  return true;
}

bool Run::completed(const Sent& sent) {
  if (sent.complete()) return true;
  sent.link->progress();
  return sent.complete() || wants(Want::What::kCompletion, sent.peer, *sent.link, sent.bytes);
}

bool Run::wants(Want::What what, Rank peer, Endpoint& link, uint64_t bytes) {
  want_ = {.what = what, .peer = peer, .link = &link, .bytes = bytes};
  return false;
}

void Run::check_view(Rank peer, uint64_t expected_bytes) {
  if (view_.envelope == envelope() && view_.bytes == expected_bytes) [[likely]]
    return;
  auto theirs = view_.envelope.as<Signature>();
  if (theirs != signature_) {
    intruder_ = Made{peer, theirs, {}};
    throw mismatch({comm_.rank(), signature_, details_of(*call_)}, *intruder_, peer);
  }
  throw Error(
      Code::kMismatch,
      fmt::format("rank {} runs {} with a message of {} bytes, rank {} runs it expecting {} "
                  "bytes: all ranks must make the same calls, with the same arguments, in "
                  "the same order",
                  peer, doing(), view_.bytes, comm_.rank(), expected_bytes),
      peer);
}

}  // namespace ringcoll
