// Deadlines, peers that have left, and the failure of the group.
#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "p2p/post.h"

namespace ringcoll {
namespace {

using Stage = Transfer::Stage;

// How often peers are looked for that have left.
constexpr Duration kLookEvery = std::chrono::milliseconds(50);
// How long, and for how many looks, what a rank sent before it left may be on its way: on a busy
// machine time alone may pass without a look at the channel.
constexpr Duration kFarewell = std::chrono::seconds(1);
constexpr int kFarewellTurns = 8;
// How long a rank that waited in vain lets those nearer to the cause report it.
constexpr Duration kBlameGrace = std::chrono::milliseconds(500);
// A wait of less than a tenth of this that took so long: the process did not run.
constexpr Duration kSurelyStopped = std::chrono::seconds(1);

Rank partner_of(const Transfer& transfer) {
  return transfer.peer >= 0 ? transfer.peer : transfer.received.source;
}

}  // namespace

// Time in which this process did not run counts against nobody.
void Post::forgive_stop(Duration waited) {
  if (waited < kSurelyStopped) return;
  for (Transfer* each = all_.front(); each; each = all_.next(each))
    if (each->due) *each->due += waited;
}

// True if anything has ended.
bool Post::look_around(Lock& lock) {
  auto now = Clock::now();
  if (now < next_look_) return false;
  next_look_ = now + kLookEvery;
  bool any = false;
  while (expire_one(lock, now)) any = true;
  look_for_gone();
  return any | react_to_breaks(lock);
}

bool Post::expire_one(Lock& lock, Clock::time_point now) {
  Transfer* late = all_.front();
  for (; late && !(late->due && *late->due <= now); late = all_.next(late))
    if (late->due) next_look_ = std::min(next_look_, *late->due);
  if (!late) return false;
  double limit_s = late->timeout_s > 0 ? late->timeout_s : options_.timeout_s;
  std::string doing = late->describe();
  Rank partner = partner_of(*late);
  if (late->stage == Stage::kPosted || late->stage == Stage::kOwn) {
    const char* what = late->receives ? "no message came" : "no receive was there";
    courier_->withdraw(late,
                       Error(Code::kTimeout,
                             fmt::format("{}: {} within {} s (the deadline of this {}, else "
                                         "RINGCOLL_TIMEOUT_S); the communicator goes on",
                                         doing, what, limit_s, late->receives ? "receive" : "send"),
                             partner));
    return true;
  }
  lock.unlock();  // for a moment: the peer is asked
  Error error = options_.health.blame(partner, doing, kBlameGrace);
  lock.lock();
  fail_group(lock, error);
  return true;
}

// A peer that has left sends nothing more, and takes nothing.
bool Post::has_left(Rank rank) {
  if (rank == options_.rank || !options_.health.gone(rank)) return false;
  auto now = Clock::now();
  auto [found, first] = farewells_.try_emplace(rank, Farewell{0, now + kFarewell});
  return ++found->second.turns > kFarewellTurns && now >= found->second.over;
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
  bool alone = true;  // their farewells run beside one another
  for (Rank rank = 0; rank < options_.size; rank++)
    if (rank != options_.rank && !courier_->broke(rank)) alone &= has_left(rank);
  alone_ = alone;
}

// True if the group has failed by it.
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

// The cause behind the error may be on its way. Who is blocked has the channels: it finds the group
// poisoned when it is back, and ends all.
void Post::fail_group(Lock& lock, const Error& error) {
  if (failed_) return;
  const Error raised = as_error(error);  // the courier's own may be gone meanwhile
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
