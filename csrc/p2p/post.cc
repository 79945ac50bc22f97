// Begins, awaits and moves transfers. Deadlines and failures are in post_trouble.cc.
#include "p2p/post.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/interruption.h"
#include "base/log.h"

namespace ringcoll {
namespace {

using Stage = Transfer::Stage;

// Polls with the lock, before MessageChannels::wait() polls without it.
constexpr int kPolls = 64;
// Steps in which something moved, between two checks of deadlines.
constexpr int kMovesAtOnce = 1024;
// A blocked wait returns after this time, in case a wake-up was lost to a race.
constexpr Duration kLongestBlock = std::chrono::milliseconds(50);
// How long close() waits for peers to take what they are owed.
constexpr Duration kLongestFinish = std::chrono::seconds(1);

// Tells the driving thread when to check the clock and, if nothing has moved, to wait.
class Turns {
 public:
  explicit Turns(bool yields) : polls_(yields ? 1 : kPolls) {}
  bool over(bool moved) {
    if (moved) idle_ = 0;
    if (moved ? ++busy_ < kMovesAtOnce : ++idle_ < polls_) return false;
    busy_ = idle_ = 0;
    return true;
  }

 private:
  const int polls_;
  int busy_ = 0, idle_ = 0;
};

}  // namespace

Post::Post(std::function<MessageChannels&()> channels, Options options)
    : make_channels_(std::move(channels)), options_(std::move(options)) {}

// An error that concerns no single peer, or is no Error (out of memory), fails the group.
template <typename Body>
bool Post::step(Lock& lock, Body&& body) {
  try {
    bool moved = body();
    return moved | react_to_breaks(lock);
  } catch (const std::exception& error) {
    fail_group(lock, as_error(error));
    return true;
  }
}

void Post::begin(Lock& lock, Transfer& transfer) {
  check(!driver_.is_closing(), Code::kAborted, "the communicator is being closed");
  if (failed_ || options_.health.poisoned()) refuse(lock, transfer);
  if (!courier_) {
    channels_ = &make_channels_();
    courier_ = std::make_unique<Courier>(*channels_, options_.limits,
                                         [this](Transfer* each) { over(each); });
  }
  transfer.serial = ++begun_;
  all_.push(&transfer);
  started_ += transfer.started;
  step(lock, [&] {
    courier_->begin(&transfer);
    // Sends what lets the peer begin. The thread that waits does the rest.
    Rank peer = transfer.receives ? transfer.received.source : transfer.peer;
    wake_due_ |= blocked_ && (transfer.stage != Stage::kOver || courier_->has_notes());
    if (!blocked_ && peer >= 0 && peer != options_.rank) courier_->push(peer);
    return true;
  });
  if (const Error* error = courier_->trouble_of(transfer)) fail_group(lock, *error);
  wake_if_due(lock);
}

// Throws the group's error, and ends the other transfers. If a thread is blocked in the channels'
// wait, it is woken up and ends them.
void Post::refuse(Lock& lock, const Transfer& transfer) {
  if (!failed_ && blocked_) wake_due_ = true;
  if (!failed_ && !blocked_) end_all(options_.health.error());
  Error error = (failed_ ? *failed_ : options_.health.error()).within(transfer.describe());
  wake_if_due(lock);
  throw error;
}

// Releases the lock first: the blocked thread takes it at once, and would sleep again if it were
// held here.
void Post::wake_if_due(Lock& lock) {
  if (!std::exchange(wake_due_, false)) return;
  Driver::Inside inside(driver_);
  lock.unlock();
  channels_->wake();
  lock.lock();
}

void Post::run(Transfer& transfer) {
  Lock lock = driver_.enter();
  begin(lock, transfer);
  await(lock, transfer, {});
  lock.unlock();
  if (transfer.error) throw *transfer.error;
}

void Post::start(Transfer& transfer) {
  Lock lock = driver_.enter();
  make_thread(lock);  // before anything has begun
  transfer.started = true;
  begin(lock, transfer);
  if (transfer.stage != Stage::kOver) set_due(transfer);
  driver_.hand_over(lock, {});
}

// A failure fails the group, so that no peer waits for what this rank cannot start.
void Post::make_thread(Lock& lock) {
  if (driver_.is_closing() || failed_) return;
  try {
    driver_.make_thread();
  } catch (const std::exception& error) {
    fail_group(lock, as_error(error));
    wake_if_due(lock);
    throw;
  }
}

bool Post::wait(Transfer& transfer, double limit_s) {
  Lock lock = driver_.enter();
  if (limit_s < 0) return await(lock, transfer, {});
  return await(lock, transfer, Clock::now() + seconds(limit_s));
}

bool Post::has_ended(Transfer& transfer) {
  Lock lock = driver_.enter();
  return transfer.ended || transfer.teller == std::this_thread::get_id();
}

MessageCounts Post::counts() {
  Lock lock = driver_.enter();
  return courier_ ? courier_->counts() : MessageCounts();
}

// ---- Waiting ----

/// The outcome of a transfer.
class Post::Outcome final : public Driver::Awaited {
 public:
  explicit Outcome(Transfer& transfer) : transfer_(transfer) {}
  bool is_over() const override { return transfer_.stage == Stage::kOver; }
  Transfer& transfer() { return transfer_; }

 private:
  Transfer& transfer_;
};

/// The return of a `done` that another thread has called.
class Post::Told final : public Driver::Awaited {
 public:
  explicit Told(const Transfer& transfer) : transfer_(transfer) {}
  bool is_over() const override { return transfer_.ended; }

 private:
  const Transfer& transfer_;
};

bool Post::await(Lock& lock, Transfer& transfer, Limit limit) {
  const auto is_teller = [&] { return transfer.teller == std::this_thread::get_id(); };
  Driver::Inside inside(driver_);
  Outcome outcome(transfer);
  if (driver_.is_driven() && !transfer.due && !outcome.is_over()) set_due(transfer);
  if (!driver_.wait(lock, outcome, limit)) return false;
  if (transfer.ended || is_teller()) return true;
  if (transfer.teller == std::thread::id()) {
    untold_.remove(&transfer);
    tell(lock, transfer);
    return true;
  }
  Told told(transfer);
  return driver_.wait(lock, told, limit, false);
}

// Called once for each transfer, when its outcome is known and its memory is no longer used.
void Post::over(Transfer* transfer) {
  all_.remove(transfer);
  started_ -= transfer->started;
  const bool driven_for = transfer == driven_for_;
  wake_due_ |= driven_for && blocked_;  // another thread of this rank has ended it
  const bool waited = driver_.wake_those_over() || driven_for;
  if (!transfer->started || !transfer->done) {
    transfer->ended = true;
    return;
  }
  untold_.push(transfer);
  if (!waited) driver_.call_thread_back();
}

// Calls `done`, in the thread that waits for the transfer or in the library's. The local `done`
// keeps what it captures alive until the transfer has ended.
void Post::tell(Lock& lock, Transfer& transfer) {
  auto done = std::move(transfer.done);
  transfer.teller = std::this_thread::get_id();
  lock.unlock();
  done(transfer.error);
  lock.lock();
  transfer.teller = {};
  transfer.ended = true;
  driver_.wake_those_over();
}

bool Post::call_back(Lock& lock) {
  Transfer* transfer = untold_.pop();
  if (transfer) tell(lock, *transfer);
  return transfer != nullptr;
}

// ---- Moving ----

void Post::wake() {
  if (blocked_) channels_->wake();
}

bool Post::enough() const {
  if (driver_.enough()) return true;
  return !driven_for_ && (!untold_.empty() || !has_work() || Interruption::has_ended());
}

void Post::drive(Lock& lock, Driver::Awaited* awaited, Limit limit) {
  driven_for_ = awaited ? &static_cast<Outcome*>(awaited)->transfer() : nullptr;
  Turns turns(options_.yields);
  while (!enough()) {
    bool moved = step(lock, [this] { return courier_->advance(); });
    if (options_.health.poisoned()) {
      end_all(options_.health.error());
      continue;
    }
    if (moved) driver_.let_others_in(lock);
    if (!turns.over(moved)) continue;
    driver_.let_others_in(lock);
    if (Driver::attend(lock)) continue;
    if (limit && Clock::now() >= *limit) break;
    if (moved)
      look_around(lock);
    else
      rest(lock, limit);
  }
  driven_for_ = nullptr;
}

// Called when nothing has moved for a while.
void Post::rest(Lock& lock, Limit limit) {
  if (driven_for_ && !driven_for_->due) set_due(*driven_for_);
  if (look_around(lock)) return;
  if (!step(lock, [this] { return courier_->advance_thoroughly(); })) block(lock, limit);
}

void Post::block(Lock& lock, Limit limit) {
  if (driver_.is_closing()) return;
  auto before = Clock::now();
  auto until = std::min(before + kLongestBlock, next_look_);
  if (limit) until = std::min(until, *limit);
  uint64_t copying = courier_->copying();
  std::optional<Error> broken;
  blocked_ = true;
  lock.unlock();
  try {
    channels_->wait(std::max(until - before, Duration::zero()), copying);
  } catch (const Error& error) {
    broken = error;
  }
  lock.lock();
  blocked_ = false;
  if (broken) return fail_group(lock, *broken);
  forgive_stop(Clock::now() - before);
}

// ---- The end ----

void Post::close() {
  Lock lock = driver_.enter();
  if (driver_.is_closing()) return;
  driver_.close(lock, [&] {
    if (courier_ && !failed_) finish(lock);
    end_all(Error(Code::kAborted, "the communicator was closed before this had ended"));
  });
}

// Waits until the channels have what was sent from callers' memory, which is then the callers'
// again.
void Post::finish(Lock& lock) {
  auto over = Clock::now() + kLongestFinish;
  try {
    while (!courier_->quiet() && !options_.health.poisoned() && Clock::now() < over) {
      if (courier_->advance_thoroughly()) continue;
      blocked_ = true;
      lock.unlock();
      channels_->wait(std::chrono::milliseconds(1), 0);
      lock.lock();
      blocked_ = false;
    }
  } catch (const Error& error) {
    if (!lock) lock.lock();
    blocked_ = false;
    log_debug("closing: {}", error.what());
  }
  if (courier_->lends() && !options_.health.poisoned())
    options_.health.poison(Error(
        Code::kAborted,
        fmt::format("rank {} closed the communicator while a message was sent", options_.rank),
        options_.rank));
}

}  // namespace ringcoll
