// Who waits and who moves. What can go wrong meanwhile is in post_trouble.cc.
#include "p2p/post.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/interruption.h"
#include "base/log.h"
#include "base/threads.h"

namespace ringcoll {
namespace {

using Stage = Transfer::Stage;

// Looks at the channels before a wait, which polls for a while, too, but without the lock.
constexpr int kPolls = 64;
// Turns in which something moved, between two looks at deadlines.
constexpr int kMovesAtOnce = 1024;
// A wait that blocks looks up again after this time, in case a wake-up was lost to a race.
constexpr Duration kLongestBlock = std::chrono::milliseconds(50);
// How long nobody may have had the role before the library's thread takes it: a program that waits
// for what it has started is not disturbed.
constexpr Duration kNap = std::chrono::milliseconds(1);
// Naps without anything to do before it sleeps until it is called, which costs the caller a system
// call.
constexpr int kIdleNaps = 20;
// How long close() waits for peers to take what they are owed.
constexpr Duration kLongestFinish = std::chrono::seconds(1);

// Of who has the role: when it looks at the clock, and then, if nothing has moved, waits.
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

Post::Lock Post::enter() {
  Lock lock(mutex_, std::try_to_lock);
  if (lock) return lock;
  entering_++;
  lock.lock();
  entering_--;
  return lock;
}

// A mutex is not fair: who gives it up and takes it again at once keeps others out.
void Post::let_others_in(Lock& lock) {
  if (entering_.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  for (int i = 0; i < kPolls && entering_ > 0; i++) ::sched_yield();
  lock.lock();
}

// What goes wrong with no peer in particular (and what is no Error: memory) is the group's.
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
  check(!closing_, Code::kAborted, "the communicator is being closed");
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
    // The peer's part can begin; the rest is for who waits.
    Rank peer = transfer.receives ? transfer.received.source : transfer.peer;
    wake_due_ |= blocked_ && (transfer.stage != Stage::kOver || courier_->has_notes());
    if (!blocked_ && peer >= 0 && peer != options_.rank) courier_->push(peer);
    return true;
  });
  if (const Error* error = courier_->trouble_of(transfer)) fail_group(lock, *error);
  wake_if_due(lock);
}

// Who is blocked ends the others, and is told.
void Post::refuse(Lock& lock, const Transfer& transfer) {
  if (!failed_ && blocked_) wake_due_ = true;
  if (!failed_ && !blocked_) end_all(options_.health.error());
  Error error = (failed_ ? *failed_ : options_.health.error()).within(transfer.describe());
  wake_if_due(lock);
  throw error;
}

// Who is blocked takes the lock first of all: woken under it, it would sleep again at once.
void Post::wake_if_due(Lock& lock) {
  if (!std::exchange(wake_due_, false)) return;
  inside_++;
  lock.unlock();
  channels_->wake();
  lock.lock();
  inside_--;
  if (closing_) left_.notify_all();
}

void Post::run(Transfer& transfer) {
  Lock lock = enter();
  begin(lock, transfer);
  await(lock, transfer, {});
  lock.unlock();
  if (transfer.error) throw *transfer.error;
}

void Post::start(Transfer& transfer) {
  Lock lock = enter();
  make_thread(lock);  // before anything has begun
  transfer.started = true;
  begin(lock, transfer);
  if (transfer.stage != Stage::kOver) set_due(transfer);
  if (transfer.stage != Stage::kOver || transfer.done) return call_thread();
  hand_over(lock, {});
}

// A peer that waits for what this rank cannot start is told at once.
void Post::make_thread(Lock& lock) {
  if (thread_.joinable() || closing_ || failed_) return;
  try {
    thread_ = start_thread("ringcoll-post", [this] { work(); });
  } catch (const std::exception& error) {
    fail_group(lock, as_error(error));
    wake_if_due(lock);
    throw;
  }
}

bool Post::wait(Transfer& transfer, double limit_s) {
  Lock lock = enter();
  if (limit_s < 0) return await(lock, transfer, {});
  return await(lock, transfer, Clock::now() + seconds(limit_s));
}

bool Post::has_ended(Transfer& transfer) {
  Lock lock = enter();
  return transfer.ended || transfer.teller == std::this_thread::get_id();
}

MessageCounts Post::counts() {
  Lock lock = enter();
  return courier_ ? courier_->counts() : MessageCounts();
}

// ---- Waiting ----

bool Post::await(Lock& lock, Transfer& transfer, std::optional<Clock::time_point> limit) {
  inside_++;
  bool looked = false;
  auto ended = [&] { return transfer.ended || transfer.teller == std::this_thread::get_id(); };
  while (!ended()) {
    if (attend(lock)) continue;
    if (transfer.stage == Stage::kOver && transfer.teller == std::thread::id()) {
      untold_.remove(&transfer);
      tell(lock, transfer);
    } else if (limit && looked && Clock::now() >= *limit) {
      break;
    } else if (driven_ || closing_ || transfer.stage == Stage::kOver) {
      looked = true;
      sleep(lock, transfer, limit);
    } else {
      looked = true;
      drive(lock, &transfer, limit);
    }
  }
  hand_over(lock, limit);
  inside_--;
  if (closing_) left_.notify_all();
  return ended();
}

// True if the caller of this thread's call was asked, for which the lock was given up.
bool Post::attend(Lock& lock) {
  if (!Interruption::is_due()) return false;
  lock.unlock();
  Interruption::look();
  lock.lock();
  return true;
}

// Until it has ended or is to be told, the role is free, or the limit has passed.
void Post::sleep(Lock& lock, Transfer& transfer, std::optional<Clock::time_point> limit) {
  if (!transfer.due && transfer.stage != Stage::kOver) set_due(transfer);
  Waiter waiter{&transfer};
  waiters_.push(&waiter);
  if (!limit && Interruption::watches()) limit = Clock::now() + Interruption::kEvery;
  if (blocked_ && by_thread_) channels_->wake();  // it gives the role to who waits
  if (limit)
    waiter.changed.wait_until(lock, *limit, [&] { return waiter.called; });
  else
    waiter.changed.wait(lock, [&] { return waiter.called; });
  if (waiter.called) entering_--;
  waiters_.remove(&waiter);
}

// It is let in before who has the role goes on with the lock.
void Post::call(Waiter& waiter) {
  if (std::exchange(waiter.called, true)) return;
  entering_++;
  waiter.changed.notify_one();
}

// Once, when the outcome is known: nothing touches the transfer's memory any more.
void Post::over(Transfer* transfer) {
  all_.remove(transfer);
  started_ -= transfer->started;
  bool waited = transfer == driven_for_;
  wake_due_ |= waited && blocked_;  // it came from this rank itself
  for (Waiter* waiter = waiters_.front(); waiter; waiter = waiters_.next(waiter))
    if (waiter->transfer == transfer) call(*waiter), waited = true;
  if (!transfer->started || !transfer->done) {
    transfer->ended = true;
    return;
  }
  untold_.push(transfer);
  if (!waited) call_thread();
}

// By who waits for it, or the library's thread. What `done` holds on to outlives the transfer's
// end.
void Post::tell(Lock& lock, Transfer& transfer) {
  auto done = std::move(transfer.done);
  transfer.teller = std::this_thread::get_id();
  lock.unlock();
  done(transfer.error);
  lock.lock();
  transfer.teller = {};
  transfer.ended = true;
  for (Waiter* waiter = waiters_.front(); waiter; waiter = waiters_.next(waiter))
    if (waiter->transfer == &transfer) call(*waiter);
}

// ---- The role ----

bool Post::waited_for() const {
  for (Waiter* waiter = waiters_.front(); waiter; waiter = waiters_.next(waiter))
    if (waiter->transfer->stage != Stage::kOver) return true;
  return false;
}

// To one who waits, else the library's thread. Where there is none, and none can be made, this
// thread does what is left: the transfers of blocking calls have ended, and must not fail by that.
void Post::hand_over(Lock& lock, std::optional<Clock::time_point> limit) {
  while (!driven_) {
    for (Waiter* waiter = waiters_.front(); waiter; waiter = waiters_.next(waiter))
      if (waiter->transfer->stage != Stage::kOver) return call(*waiter);
    if (!work_left() || closing_) return;
    if (has_thread()) return call_thread();
    if ((limit && Clock::now() >= *limit) || Interruption::has_ended()) return;
    drive(lock, nullptr, limit);
  }
}

// With the library's thread, which is made if need be.
bool Post::has_thread() {
  if (thread_.joinable()) return true;
  try {
    thread_ = start_thread("ringcoll-post", [this] { work(); });
    return true;
  } catch (const std::exception& error) {
    log_debug("{}; who sends or receives moves all messages", error.what());
    return false;
  }
}

// The library's thread leaves the role to who waits.
bool Post::enough(const Transfer* mine) const {
  if (closing_) return true;
  if (mine) return mine->stage == Stage::kOver;
  return !untold_.empty() || !work_left() || waited_for() || Interruption::has_ended();
}

void Post::drive(Lock& lock, Transfer* mine, std::optional<Clock::time_point> limit) {
  driven_ = true;
  by_thread_ = !mine;
  driven_for_ = mine;
  drives_++;
  Turns turns(options_.yields);
  while (!enough(mine)) {
    bool moved = step(lock, [this] { return courier_->advance(); });
    if (options_.health.poisoned()) {
      end_all(options_.health.error());
      continue;
    }
    if (moved) let_others_in(lock);
    if (!turns.over(moved)) continue;
    let_others_in(lock);
    if (attend(lock)) continue;
    auto now = Clock::now();
    if (limit && now >= *limit) break;
    if (moved)
      look_around(lock);
    else
      rest(lock, mine, limit);
  }
  driven_ = false;
  driven_for_ = nullptr;
  left_.notify_all();
}

// Nothing has moved for a while.
void Post::rest(Lock& lock, Transfer* mine, std::optional<Clock::time_point> limit) {
  if (mine && !mine->due) set_due(*mine);
  if (look_around(lock)) return;
  if (!step(lock, [this] { return courier_->advance_thoroughly(); })) block(lock, limit);
}

void Post::block(Lock& lock, std::optional<Clock::time_point> limit) {
  if (closing_) return;
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

// ---- The library's thread ----

// Of who has the role, or while nobody has it.
bool Post::work_left() const { return started_ > 0 || (courier_ && courier_->owes()); }

void Post::call_thread() {
  if (asleep_ || !untold_.empty()) work_.notify_one();
}

void Post::work() {
  Lock lock(mutex_);
  uint64_t seen = drives_;
  for (int idle = 0;;) {
    while (Transfer* transfer = untold_.pop()) tell(lock, *transfer);
    if (stopping_) return;
    bool quiet = seen == drives_;  // for as long as a nap
    if (quiet && !driven_ && !closing_ && work_left() && !waited_for()) {
      drive(lock, nullptr, {});
      hand_over(lock, {});
      idle = 0;
    } else if (!quiet || (!driven_ && (work_left() || idle < kIdleNaps))) {
      idle = quiet && !work_left() ? idle + 1 : 0;
      seen = drives_;
      nap(lock);
      continue;
    } else {
      sleep_until_called(lock);
      idle = 0;
    }
    seen = drives_;
  }
}

void Post::nap(Lock& lock) {
  work_.wait_for(lock, kNap, [this] { return stopping_ || !untold_.empty(); });
}

void Post::sleep_until_called(Lock& lock) {
  asleep_ = true;
  work_.wait(lock, [this] {
    return stopping_ || !untold_.empty() || (!driven_ && !closing_ && work_left());
  });
  asleep_ = false;
}

// ---- The end ----

void Post::close() {
  Lock lock = enter();
  if (closed_) return;
  closing_ = true;
  if (blocked_) channels_->wake();
  left_.wait(lock, [this] { return !driven_; });
  driven_ = true;
  by_thread_ = false;
  if (courier_ && !failed_) finish(lock);
  end_all(Error(Code::kAborted, "the communicator was closed before this had ended"));
  driven_ = false;
  stopping_ = true;
  work_.notify_one();
  if (thread_.joinable()) {
    lock.unlock();
    thread_.join();
    lock.lock();
  }
  while (Transfer* transfer = untold_.pop()) tell(lock, *transfer);
  left_.wait(lock, [this] { return inside_ == 0; });
  closed_ = true;
}

// What was sent from callers' memory has to be with the channels before that is theirs again.
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
