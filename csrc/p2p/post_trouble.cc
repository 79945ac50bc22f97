// Deadlines, peers that have left, and failures of the group.
#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "p2p/post.h"

namespace ringcoll {
namespace {

using Stage = Transfer::Stage;

// How often to check for peers that have left.
constexpr Duration kLookEvery = std::chrono::milliseconds(50);
// How long a rank whose wait timed out lets ranks nearer to the cause report it.
constexpr Duration kBlameGrace = std::chrono::milliseconds(500);
// Waits are set to less than a tenth of this. A wait that took so long shows that the process did
// not run.
constexpr Duration kSurelyStopped = std::chrono::seconds(1);

Rank partner_of(const Transfer& transfer) {
  return transfer.peer >= 0 ? transfer.peer : transfer.received.source;
}

}  // namespace

// Extends all deadlines by time in which this process did not run.
void Post::forgive_stop(Duration waited) {
  if (waited < kSurelyStopped) return;
  for (Transfer* each = all_.front(); each; each = all_.next(each))
    if (each->due) *each->due += waited;
}

// True if any transfer has ended.
bool Post::look_around(Lock& lock) {
  auto now = Clock::now();
  if (now < next_look_) return false;
  next_look_ = now + kLookEvery;
  bool any = false;
  while (expire_one(lock, now)) any = true;
  tell_of_long_waits(now);
  look_for_gone();
  return any | react_to_breaks(lock);
}

void Post::set_due(Transfer& transfer) {
  auto now = Clock::now();
  transfer.due = now + limit_of(transfer);
  transfer.moved_when_due = transfer.moved + transfer.helped;
  if (!transfer.long_wait) transfer.long_wait.emplace(now);
  next_look_ = std::min({next_look_, *transfer.due, transfer.long_wait->next()});
}

Duration Post::limit_of(const Transfer& transfer) const {
  return seconds(transfer.timeout_s > 0 ? transfer.timeout_s : options_.timeout_s);
}

// Ends or extends one transfer whose deadline has passed. False: there is none.
bool Post::expire_one(Lock& lock, Clock::time_point now) {
  for (Transfer* each = all_.front(); each; each = all_.next(each)) {
    if (each->due && *each->due <= now) {
      expire(lock, *each);
      return true;
    }
    if (each->due) next_look_ = std::min(next_look_, *each->due);
  }
  return false;
}

void Post::expire(Lock& lock, Transfer& late) {
  using enum Transfer::Stage;
  if (late.stage == kOffered && late.started && late.timeout_s == 0) return set_due(late);
  if (late.stage != kUnderWay) return courier_->withdraw(&late, unmatched(late));
  bool goes_on = late.moved + late.helped > late.moved_when_due;
  if (goes_on) return set_due(late);
  if (courier_->end_early(&late)) return;
  bool is_taken = courier_->has_taken(late);
  std::string doing = late.describe();
  Rank partner = partner_of(late);
  const uint64_t serial = late.serial;
  lock.unlock();  // while the peer is asked
  bool lives = is_taken && options_.health.answers(partner, kBlameGrace);
  std::optional<Error> error;
  if (!lives) error = options_.health.blame(partner, doing, kBlameGrace);
  lock.lock();
  Transfer* still = all_.front();
  while (still && still->serial != serial) still = all_.next(still);
  if (!still || still->stage != kUnderWay) return;  // it has ended or begun again meanwhile
  if (lives) return set_due(*still);
  fail_group(lock, *error);
}

// No peer has matched the transfer, so it ends alone.
Error Post::unmatched(const Transfer& late) const {
  return Error(
      Code::kTimeout,
      fmt::format("{}: {} within {} s (the deadline of this {}, else "
                  "RINGCOLL_TIMEOUT_S); the communicator goes on",
                  late.describe(), late.receives ? "no message came" : "no receive was there",
                  to_seconds(limit_of(late)), late.receives ? "receive" : "send"),
      partner_of(late));
}

void Post::interrupt(Transfer& transfer) {
  Lock lock = driver_.enter();
  if (transfer.stage == Stage::kOver) return;
  const std::string doing = transfer.describe();
  if (transfer.stage != Stage::kUnderWay) {
    courier_->withdraw(&transfer,
                       Error(Code::kAborted,
                             doing + ": interrupted before the other end had met it; the "
                                     "communicator goes on",
                             options_.rank));
    wake_due_ |= blocked_ && courier_->has_notes();
    return wake_if_due(lock);
  }
  if (courier_->end_early(&transfer)) return;
  lock.unlock();
  options_.health.poison(Error(
      Code::kAborted,
      fmt::format("aborted by {}: interrupted in its {}", options_.describe(options_.rank), doing),
      options_.rank));
}

// Logs long waits. The peer may be late, or its caller may have forgotten its half of the message.
void Post::tell_of_long_waits(Clock::time_point now) {
  for (Transfer* each = all_.front(); each; each = all_.next(each)) {
    if (!each->long_wait) continue;
    Rank partner = partner_of(*each);
    each->long_wait->tell(
        now, [&] { return options_.describe(options_.rank); }, [&] { return each->describe(); },
        [&] { return partner == kAnySource ? "any rank" : options_.describe(partner); });
    next_look_ = std::min(next_look_, each->long_wait->next());
  }
}

// A peer that has left neither sends nor receives.
bool Post::has_left(Rank rank) {
  return rank != options_.rank && farewells_[rank].is_over(options_.health, rank);
}

void Post::look_for_gone() {
  bool waits_for_any = false;
  std::set<Rank> looked;
  for (Transfer* each = all_.front(); each; each = all_.next(each)) {
    Rank partner = partner_of(*each);
    waits_for_any |= partner == kAnySource;
    if (partner < 0 || partner == options_.rank || !looked.insert(partner).second) continue;
    if (has_left(partner))
      courier_->break_off(
          partner,
          Error(Code::kPeerLost,
                fmt::format("{} has left the communicator", options_.describe(partner)), partner));
  }
  if (!waits_for_any || options_.size == 1) return;
  bool alone = true;  // no early exit: the farewells of all ranks run at the same time
  for (Rank rank = 0; rank < options_.size; rank++)
    if (rank != options_.rank && !courier_->broke(rank)) alone &= has_left(rank);
  alone_ = alone;
}

// Fails the group if a transfer needs a peer that was broken off, or waits for any rank after all
// others have left. True if it has failed.
bool Post::react_to_breaks(Lock& lock) {
  if (breaks_ == courier_->broken() && !alone_) return false;
  breaks_ = courier_->broken();
  std::optional<Error> error;
  for (Transfer* each = all_.front(); each && !error; each = all_.next(each)) {
    if (const Error* trouble = courier_->trouble_of(*each)) error = *trouble;
    if (alone_ && partner_of(*each) == kAnySource)
      error = Error(Code::kPeerLost, "all other ranks have left the communicator");
  }
  alone_ = false;
  if (error) fail_group(lock, *error);
  return error.has_value();
}

// Health::fail() waits for the cause behind the error, without the lock. A thread that is blocked
// has the channels. It finds the group poisoned when its wait returns, and ends all transfers.
void Post::fail_group(Lock& lock, const Error& error) {
  if (failed_) return;
  const Error raised = as_error(error);  // a copy: the courier may free its own meanwhile
  lock.unlock();
  options_.health.fail(raised);
  lock.lock();
  if (blocked_)
    wake_due_ = true;
  else
    end_all(options_.health.error());
}

void Post::end_all(const Error& error) {
  invariant(!blocked_, "messages are given up while their channels are waited for");
  if (!failed_) failed_ = error;
  if (courier_) courier_->give_up();
  while (Transfer* each = all_.front()) {
    each->error = error.within(each->describe());
    each->stage = Stage::kOver;
    over(each);
  }
}

}  // namespace ringcoll
