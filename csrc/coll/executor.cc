#include "coll/executor.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "coll/terrain.h"

namespace ringcoll {
namespace {

// What is kept for calls of different shapes.
constexpr size_t kMostShapes = 1024;
// From here on a piece is worth huge pages. Between hosts it waits for the network, and there are
// more slots to give pages to: 16 calls of 64 KiB took 50 ms each there until all had theirs.
constexpr size_t kLargePieceBytes = 64 << 10;
constexpr size_t kLargeNetworkPieceBytes = 1 << 20;
// From here on a tensor is worth being sent as it lies: below, packing it costs less than waiting
// until its sends are complete.
constexpr size_t kLeastLoanBytes = 32 << 10;
// How long a rank that leaves keeps its arena for peers that have not read all of it.
constexpr Duration kLongestDrain = std::chrono::seconds(5);

}  // namespace

Executor::Executor(Communicator& comm)
    : comm_(comm),
      order_(comm.topology().ring_order()),
      position_(comm.size()),
      choices_(kMostShapes),
      plans_(kMostShapes) {
  for (Rank i = 0; i < comm.size(); i++) position_[order_[i]] = i;
  self_ = position_[comm.rank()];
  const Config& config = comm.config();
  check_algorithm(config.algorithm);
  selector_.emplace(terrain_of(comm));
  auto bank_bytes = static_cast<size_t>(selector_->bank_bytes());
  std::byte* at = comm.arena().data();
  for (int64_t i = 0; i < selector_->slots(); i++, at += 2 * bank_bytes)
    slots_.push_back({{at, at + bank_bytes}, {}, 0});
  auto far = [&](Rank rank) { return comm.link_of(rank) == LinkClass::kNetwork; };
  if (std::ranges::any_of(order_, far))
    for (Rank rank : order_) zero_copy_.push_back(far(rank));
}

Executor::~Executor() {
  Deadline deadline(std::min(kLongestDrain, seconds(comm_.config().timeout_s)));
  try {
    for (Slot& slot : slots_)
      for (const Sent& sent : slot.unread)
        while (sent.link->completed() < sent.number && !deadline.passed() && !comm_.poisoned()) {
          sent.link->progress();
          sent.link->wait(std::chrono::milliseconds(1));
        }
  } catch (const Error& error) {
    log_debug("closing {}: {}", comm_.name(), error.what());
  }
}

std::string Executor::doing() const { return describe(signature_); }

void Executor::run(const Call& call) {
  comm_.throw_if_poisoned();
  try {
    signature_ = signature_of(call, comm_.size(), ++sequence_);
    envelope_ = Envelope::of(signature_);
    execute(call);
  } catch (const std::exception& error) {  // std::bad_alloc too: nobody may wait for this rank
    pieces_.clear();
    lent_.clear();
    throw comm_.fail(as_error(error).within(doing()));
  }
}

void Executor::execute(const Call& call) {
  comm_.counters().calls += 1;
  bool forgot_choices = choices_.trim(), forgot_plans = plans_.trim();
  if (forgot_choices || forgot_plans) shape_.reset();  // which points to one of each
  prepare(call);
  const Choice& choice = *choice_;
  if (choice.pieces == 0) return;
  if (!zero_copy_.empty()) comm_.lend(layout_.loans(kLeastLoanBytes));
  if (choice.pieces == 1)
    run_alone(call, choice);
  else
    run_pipeline(call, choice);
  await_lent();
  comm_.flush([this] { return doing(); });
}

// Steps of training make the same call again and again, and so do benchmarks: one like the one
// before, of one tensor, needs nothing worked out anew.
void Executor::prepare(const Call& call) {
  std::optional<Shape> shape;
  if (call.is_vector() && call.buffers.size() == 1)
    shape = {call.collective,
             call.dtype,
             call.op,
             call.root,
             call.prescale,
             call.postscale,
             call.total(),
             call.buffers[0].input != nullptr,
             call.buffers[0].output != nullptr};
  if (shape && shape == shape_) return layout_.replace(call.buffers[0]);
  shape_.reset();  // should one of these throw
  layout_.reset(call, comm_.rank(), order_);
  choice_ = &choice_for(call);
  mover_.emplace(call, comm_.counters());
  repeated_plan_ = nullptr;
  shape_ = shape;
}

// The pipeline of one piece. Most calls are that, and the small ones among them notice what a
// pipeline of several has to keep.
void Executor::run_alone(const Call& call, const Choice& choice) {
  pieces_.resize(1);
  Piece& piece = pieces_.front();
  piece.index = 0;
  begin(piece, call, choice);
  for (size_t stage = 0; stage <= piece.plan->actions.size(); stage++) {
    if (comm_.wants_places()) expect(piece, stage);
    advance(piece, stage);
  }
}

void Executor::run_pipeline(const Call& call, const Choice& choice) {
  auto slots = static_cast<int64_t>(slots_.size());
  int64_t started = 0, finished = 0, next_start = 0;
  pieces_.resize(std::min(slots, choice.pieces));
  for (int64_t tick = 0; finished < choice.pieces; tick++) {
    if (started < choice.pieces && started - finished < slots && tick >= next_start) {
      Piece& piece = pieces_[started % slots];
      piece.index = started++;
      piece.start = tick;
      begin(piece, call, choice);
      // Spread over the rounds, so that every tick has some that cross the network and some that
      // do not.
      auto rounds = static_cast<int64_t>(piece.plan->actions.size());
      next_start = tick + std::max<int64_t>(1, (rounds + slots - 1) / slots);
    }
    // What the next tick receives, in the order in which it does.
    for (int64_t k = started - 1; comm_.wants_places() && k >= finished; k--) {
      Piece& piece = pieces_[k % slots];
      expect(piece, tick - piece.start);
    }
    for (int64_t k = started - 1; k >= finished; k--) {
      Piece& piece = pieces_[k % slots];
      advance(piece, tick - piece.start);
    }
    while (finished < started) {
      Piece& oldest = pieces_[finished % slots];
      if (tick - oldest.start < static_cast<int64_t>(oldest.plan->actions.size())) break;
      finished++;
    }
  }
}

// Stage 0 begins: a slot whose former content nobody reads any more, and the plan.
void Executor::begin(Piece& piece, const Call& call, const Choice& choice) {
  layout_.fragments_of(piece.index, choice.stretch, &piece.fragments);
  piece.zero_copy = is_zero_copy(piece, call);
  piece.plan = plan_of(piece, call, choice);
  piece.slot = &slots_[next_slot_++ % slots_.size()];
  for (const Sent& sent : piece.slot->unread) await_completion(sent);
  piece.slot->unread.clear();
  if (!piece.fragments.empty()) prepare_slot(*piece.slot, piece.fragments.back().end());
  piece.sent.assign(piece.plan->actions.size(), {});
  piece.memory = {piece.fragments, {piece.slot->bank[0], piece.slot->bank[1]}};
  for (const Packing& packing : piece.plan->pack) mover_->pack(piece.memory, packing);
}

// A vector's piece that spans several tensors has no memory of its own; in an alltoall in place,
// what is received replaces what is still to be sent to somebody else.
bool Executor::is_zero_copy(const Piece& piece, const Call& call) const {
  if (zero_copy_.empty() || call.collective == RC_BARRIER) return false;
  const rc_buffer& first = call.buffers[0];
  bool exchanges = call.collective == RC_ALLTOALL && first.input == first.output;
  bool one_each = !call.is_vector() || piece.fragments.size() == 1;
  return one_each && !exchanges && !piece.fragments.empty() && mover_->outputs_are_sendable() &&
         std::ranges::all_of(piece.fragments, &Fragment::lent);
}

// Large pieces get huge pages, a slot's when it is first used by one.
void Executor::prepare_slot(Slot& slot, int64_t elements) {
  size_t bytes = static_cast<size_t>(elements) * mover_->element_bytes();
  if (bytes <= slot.prepared_bytes) return;
  slot.prepared_bytes = bytes;
  if (bytes < (selector_->terrain().one_domain ? kLargePieceBytes : kLargeNetworkPieceBytes))
    return;
  for (std::byte* bank : slot.bank) comm_.arena().prepare(bank, bytes);
}

void Executor::advance(Piece& piece, size_t stage) {
  size_t rounds = piece.plan->actions.size();
  if (stage > rounds) return;
  if (stage > 0) receive(piece, stage - 1);
  if (stage < rounds) send(piece, stage);
  if (stage == rounds)
    for (const Move& move : piece.plan->finish) mover_->finish(piece.memory, move);
}

void Executor::expect(Piece& piece, size_t round) {
  if (round >= piece.plan->actions.size()) return;
  const Action& action = piece.plan->actions[round];
  if (action.recv_from == kNobody) return;
  comm_.endpoint(order_[action.recv_from])
      .expect(place_for(piece, action), action.recv.count * mover_->element_bytes());
}

// Where a transport may put what it receives: its final place, if it needs no combining and nothing
// there is waited for.
std::byte* Executor::place_for(const Piece& piece, const Action& action) const {
  bool single = action.parts.size() == 1 && action.parts[0].after < 0;
  return single ? mover_->place_for(piece.memory, action.parts[0]) : nullptr;
}

void Executor::send(Piece& piece, size_t round) {
  const Action& action = piece.plan->actions[round];
  if (action.send_to == kNobody) return;
  Rank peer = order_[action.send_to];
  Endpoint& link = comm_.endpoint(peer);
  const std::byte* data = mover_->source(piece.memory, action.send_from, action.send.first);
  uint64_t bytes = action.send.count * mover_->element_bytes();
  uint64_t number = link.try_send(envelope_, data, bytes);
  if (number == 0)
    comm_.wait(
        peer, link,
        [&] {
          link.progress();
          number = link.try_send(envelope_, data, bytes);
          return number > 0;
        },
        [&] { return doing(); });
  comm_.counters().messages_sent += 1;
  comm_.counters().bytes_sent += bytes;
  note_sent(piece, round, {&link, peer, number});
}

// Whose memory may be written again only after `sent` is complete.
void Executor::note_sent(Piece& piece, size_t round, const Sent& sent) {
  const Action& action = piece.plan->actions[round];
  bool lent = action.send_from == Place::kInput || action.send_from == Place::kOutput;
  if (lent) comm_.counters().bytes_sent_zero_copy += action.send.count * mover_->element_bytes();
  if (sent.link->completed() >= sent.number) return;
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

void Executor::receive(Piece& piece, size_t round) {
  const Action& action = piece.plan->actions[round];
  if (action.recv_from == kNobody) return;
  Rank peer = order_[action.recv_from];
  Endpoint& link = comm_.endpoint(peer);
  uint64_t bytes = action.recv.count * mover_->element_bytes();
  std::byte* place = place_for(piece, action);
  View view;
  comm_.wait(
      peer, link, [&] { return link.try_recv(place, bytes, &view); }, [&] { return doing(); });
  check_view(peer, view, bytes);
  comm_.counters().bytes_received += bytes;
  for (const Part& part : action.parts) {
    if (part.after >= 0) await_completion(piece.sent[part.after]);
    const std::byte* data =
        view.data + (part.range.first - action.recv.first) * mover_->element_bytes();
    mover_->apply(piece.memory, part, data, self_ < action.recv_from);
  }
  link.release();
}

// The caller's memory is the caller's again.
void Executor::await_lent() {
  for (const Sent& sent : lent_) await_completion(sent);
  lent_.clear();
}

void Executor::await_completion(const Sent& sent) {
  if (!sent.link || sent.link->completed() >= sent.number) return;
  comm_.wait(
      sent.peer, *sent.link,
      [&] {
        sent.link->progress();
        return sent.link->completed() >= sent.number;
      },
      [&] { return doing() + ": waiting until its data is read"; });
}

void Executor::check_view(Rank peer, const View& view, uint64_t expected_bytes) {
  if (view.envelope == envelope_ && view.bytes == expected_bytes) [[likely]]
    return;
  std::string theirs = describe(view.envelope.as<Signature>()), mine = describe(signature_);
  if (theirs == mine) {
    theirs += fmt::format(" with a message of {} bytes", view.bytes);
    mine += fmt::format(" expecting {} bytes", expected_bytes);
  }
  throw Error(Code::kMismatch,
              fmt::format("rank {} runs {}, rank {} runs {}: all ranks must make the same calls, "
                          "with the same arguments, in the same order",
                          peer, theirs, comm_.rank(), mine),
              peer);
}

const Choice& Executor::choice_for(const Call& call) {
  key_ = {call.collective, call.dtype, layout_.longest_lane(), call.counts.empty()};
  return choices_.get(
      key_, [&] { return selector_->choose(call, layout_.longest_lane(), layout_.lanes()); });
}

const Plan* Executor::plan_of(const Piece& piece, const Call& call, const Choice& choice) {
  if (repeated_plan_ && repeated_plan_zero_copy_ == piece.zero_copy) return repeated_plan_;
  layout_.counts_of(piece.index, choice.stretch, &counts_);
  Planned& planned = plan_for(call, *choice.row, piece.zero_copy);
  if (!planned.connected) comm_.connect(planned.peers);
  planned.connected = true;
  if (choice.pieces == 1) {
    repeated_plan_ = &planned.plan;
    repeated_plan_zero_copy_ = piece.zero_copy;
  }
  return &planned.plan;
}

Executor::Planned& Executor::plan_for(const Call& call, const ScheduleRow& row, bool zero_copy) {
  key_.clear();
  key_.push_back(&row - schedules().data());
  key_.push_back(call.root);
  key_.push_back(
      static_cast<int64_t>(layout_.ends_key() << 2 | zero_copy << 1 | mover_->pack_all()));
  key_.insert(key_.end(), counts_.begin(), counts_.end());
  return plans_.get(key_, [&] { return make_plan(call, row, zero_copy); });
}

// Neither waits nor connects.
Executor::Planned Executor::make_plan(const Call& call, const ScheduleRow& row, bool zero_copy) {
  std::span<const int64_t> counts = counts_;
  Problem problem{.rank = self_,
                  .size = comm_.size(),
                  .root = position_[call.root],
                  .counts = counts,
                  .levels = selector_->terrain().fabric.groups};
  if (call.collective == RC_ALLTOALL) {
    problem.counts = counts.first(comm_.size());
    problem.recv_counts = counts.last(comm_.size());
  }
  Schedule schedule = row.make(problem);
  Planned planned;
  for (const Step& step : schedule)
    for (Rank position : {step.send_to, step.recv_from})
      if (position != kNobody) planned.peers.push_back(order_[position]);
  std::ranges::sort(planned.peers);
  planned.peers.erase(std::unique(planned.peers.begin(), planned.peers.end()), planned.peers.end());
  Ends ends = layout_.ends_of(counts);
  if (zero_copy) ends.zero_copy = zero_copy_;
  planned.plan =
      lower(schedule, space_of(call.collective, problem), ends, mover_->pack_all(), self_);
  return planned;
}

}  // namespace ringcoll
