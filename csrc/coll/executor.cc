#include "coll/executor.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "coll/terrain.h"

namespace ringcoll {
namespace {

// How long a rank that leaves keeps its arena for peers that have not read all of it.
constexpr Duration kLongestReading = std::chrono::seconds(5);

// Ranks that share cores also share caches, and find there what was just written, so their pieces
// need not rotate. Neither need pieces of at most inline_bytes: they are copied when they are sent,
// and are best written where the previous ones were.
size_t least_rotating(const Terrain& terrain, const Config& config) {
  if (!terrain.one_domain_of_own_cores()) return SIZE_MAX;
  return static_cast<size_t>(config.inline_bytes) + 1;
}

std::string describe_wait(const Run& run) {
  bool memory = run.want().what == Want::What::kCompletion;
  return run.doing() + (memory ? ": waiting until its data is read" : "");
}

}  // namespace

Executor::Executor(Communicator& comm)
    : comm_(comm),
      borrowers_(Borrowers::of(comm)),
      plans_(comm.rank(), comm.topology().ring_order(), borrowers_.at, borrowers_.copied,
             terrain_of(comm)),
      slots_(comm.group().memory(), static_cast<size_t>(plans_.selector().slots()),
             static_cast<size_t>(plans_.selector().bank_bytes()),
             least_rotating(plans_.selector().terrain(), comm.config())),
      ways_(plans_.selector().terrain().one_domain_of_own_cores()),
      flights_(slots_.size()),
      watch_(comm.group().health(), comm.rank()) {}

Executor::~Executor() {
  Deadline deadline(std::min(kLongestReading, seconds(comm_.config().timeout_s)));
  try {
    for (const Slot& slot : slots_.all())
      for (const Sent& sent : slot.unread)
        while (!sent.complete() && !deadline.passed() && !comm_.poisoned()) {
          sent.link->progress();
          comm_.channels().rest();
        }
  } catch (const Error& error) {
    log_debug("closing {}: {}", comm_.name(), error.what());
  }
}

// Returns the entry of the next call to begin.
Executor::Flight& Executor::make_flight() {
  Flight& next = flight(in_flight_);
  if (!next.run) next.run = std::make_unique<Run>(comm_, plans_, slots_, ways_, borrowers_);
  return next;
}

void Executor::begin(Flight& next, const Call& call) {
  const Run* before = in_flight_ > 0 ? flight(in_flight_ - 1).run.get() : nullptr;
  in_flight_++;
  comm_.counters().calls += 1;
  next.over = false;
  if (!before) set_deadline(call);
  next.run->begin(call, ++sequence_, before);
  watch_.begin(next.run->signature(), call);
}

// The deadline is that of the oldest call, since the executor waits for that call.
void Executor::set_deadline(const Call& call) {
  comm_.channels().set_deadline(
      call.timeout_s > 0 ? std::optional(Deadline(seconds(call.timeout_s))) : std::nullopt);
}

void Executor::run(const Call& call) {
  comm_.throw_if_poisoned();
  try {
    Flight& only = make_flight();
    begin(only, call);
    while (!only.run->advance()) wait_for(only.run->want());
    comm_.channels().flush([&] { return only.run->doing(); });
    in_flight_ = 0;
    park_memory();
  } catch (const std::exception& error) {  // also std::bad_alloc, or peers would wait for this rank
    throw fail(error);
  }
}

// Called when no call is in flight. Another group may need the memory.
void Executor::park_memory() {
  Group& group = comm_.group();
  if (!group.memory().has_extent()) return;
  auto reads_memory = [&](Rank peer) { return group.link_of(peer) == LinkClass::kHost; };
  if (slots_.have_left(reads_memory)) group.park_memory();
}

// Abandons all calls in flight and returns the error to raise. The code is never kInvalidArgument:
// that tells callers that the communicator is still good, and it is not once a call has begun.
Error Executor::fail(const std::exception& error) {
  Error raised = as_error(error);
  if (raised.code() == Code::kInvalidArgument)
    raised = Error(Code::kInternal, raised.what(), raised.rank());
  if (in_flight_ > 0) raised = raised.within(flight(0).run->doing());
  for (size_t i = 0; i < in_flight_; i++) {
    Run& run = *flight(i).run;
    if (run.intruder()) raised = watch_.difference(*run.intruder()).value_or(raised);
    run.abandon();
  }
  in_flight_ = 0;
  // The peer may know more about how the two calls differ.
  if (raised.code() == Code::kMismatch && !comm_.poisoned()) watch_.tell(raised.rank());
  return comm_.fail(raised);
}

void Executor::wait_for(const Want& want) {
  Run& run = *flight(0).run;
  auto doing = [&] { return run.doing(); };
  switch (want.what) {
    case Want::What::kMessage: {
      auto there = [&] { return want.link->try_recv(want.place, want.bytes, &run.view()); };
      comm_.channels().wait(want.peer, there, doing, want.bytes);
      return run.take_view();
    }
    case Want::What::kCredit:
    case Want::What::kCompletion: {
      uint64_t before = run.progress();
      comm_.channels().wait(
          want.peer, [&] { return run.advance() || run.progress() != before; },
          [&] { return describe_wait(run); }, want.bytes);
      return;
    }
    case Want::What::kLinks:
      return connect(*want.planned);
    case Want::What::kTurn:
      invariant(false, "the only call waits for calls before it");
  }
}

void Executor::connect(Planned& planned) {
  comm_.channels().connect(planned.peers, [this] { return flight(0).run->doing(); });
  planned.connected = true;
}

// ---- Several calls in flight ----

// A call that is over is ended only when the calls that may follow it have begun. So peers wait
// less.
void Executor::run_all(CallSource& calls) {
  if (comm_.poisoned() && left() == 0) {
    if (calls.next()) calls.ended(comm_.error());
    return;
  }
  try {
    comm_.throw_if_poisoned();
    do {
      begin_those_of(calls);
      if (!end_those_over(calls) || in_flight_ == 0) return;
      if (advance_all())
        patience_.reset();
      else if (!wait_for_any(calls))
        return;
    } while (!calls.leaves(false));
  } catch (const std::exception& error) {
    fail_all(calls, error);
  }
}

// True if one more call may begin. While a call lacks channels, no call follows it.
bool Executor::has_room() {
  return in_flight_ < flights_.size() &&
         (in_flight_ == 0 || flight(in_flight_ - 1).run->may_be_followed());
}

bool Executor::may_follow(const Call& call) {
  for (size_t i = 0; i < in_flight_; i++)
    if (!flight(i).over && share_memory(flight(i).run->call(), call, comm_.rank(), comm_.size()))
      return false;
  return true;
}

void Executor::begin_those_of(CallSource& calls) {
  while (has_room()) {
    if (!held_) held_ = calls.next();
    if (!held_ || !may_follow(*held_)) return;
    Flight& next = make_flight();
    begin(next, *std::exchange(held_, nullptr));
  }
}

// True if any call made progress.
bool Executor::advance_all() {
  bool moved = false;
  for (size_t i = 0; i < in_flight_; i++) {
    Flight& each = flight(i);
    if (each.over) continue;
    uint64_t before = each.run->progress();
    each.over = each.run->advance();
    moved |= each.over || each.run->progress() != before;
  }
  return moved;
}

void Executor::end_oldest(CallSource& calls) {
  first_ = (first_ + 1) % flights_.size();
  if (--in_flight_ > 0) {
    flight(0).run->be_first();
    set_deadline(flight(0).run->call());
  }
  calls.ended({});
}

// False if all calls have ended, or this thread should leave.
bool Executor::end_those_over(CallSource& calls) {
  while (in_flight_ > 0 && flight(0).over) {
    const bool last = left() == 1;
    if (last) {
      auto doing = [this] { return flight(0).run->doing(); };
      if (!comm_.channels().flush(doing, [&] { return calls.leaves(false); }, &patience_))
        return false;
      park_memory();
    }
    end_oldest(calls);
    if (last || calls.leaves(false)) return false;
    begin_those_of(calls);  // those that waited for its end
  }
  return true;
}

// Waits until a call makes progress or another may begin. It blocks for the oldest call alone,
// which waits for nothing that the later ones do (docs/design.md, "Why nothing deadlocks"). Each
// poll also advances the others. False: this thread should leave.
bool Executor::wait_for_any(CallSource& calls) {
  Run& oldest = *flight(0).run;
  const Want want = oldest.want();
  if (want.what == Want::What::kLinks) {
    if (calls.leaves(true)) return false;
    // Peers may need the messages sent so far in order to reach this call.
    comm_.channels().flush([&] { return oldest.doing(); });
    connect(*want.planned);
    patience_.reset();
    return true;
  }
  invariant(want.what != Want::What::kTurn, "the oldest call waits for calls before it");
  bool leaves = false;
  auto ready = [&] {
    leaves = calls.leaves(false);
    return leaves || advance_all() || (!held_ && has_room() && calls.has_next());
  };
  comm_.channels().wait(
      want.peer, ready, [&] { return describe_wait(oldest); }, want.bytes, &patience_);
  if (!leaves) patience_.reset();
  return !leaves;
}

// Fails all calls except those that are over and only have not been reported.
void Executor::fail_all(CallSource& calls, const std::exception& error) {
  while (left() > 1 && flight(0).over) end_oldest(calls);
  size_t failed = left();
  held_ = nullptr;
  patience_.reset();
  Error raised = fail(error);
  for (; failed > 0; failed--) calls.ended(raised);
}

}  // namespace ringcoll
