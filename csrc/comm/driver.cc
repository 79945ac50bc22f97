#include "comm/driver.h"

#include <sched.h>

#include <algorithm>

#include "base/error.h"
#include "base/interruption.h"
#include "base/log.h"
#include "base/threads.h"

namespace ringcoll {
namespace {

// While threads that wait drive, the library's thread naps, and checks after each nap whether they
// still do. So it does not disturb them, and a thread that starts work makes no system call for it.
// Work that nobody waits for then begins at most two naps late. After that work, or after kIdleNaps
// naps without work, the thread sleeps until it is called, and then drives at once.
constexpr Duration kNap = std::chrono::microseconds(500);
constexpr int kIdleNaps = 20;
// How often a thread that drives with the lock yields to let others in.
constexpr int kYields = 64;

}  // namespace

Driver::Lock Driver::enter() {
  Lock lock(mutex_, std::try_to_lock);
  if (lock) return lock;
  entering_++;
  lock.lock();
  entering_--;
  return lock;
}

void Driver::let_others_in(Lock& lock) {
  if (entering_.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  for (int i = 0; i < kYields && entering_ > 0; i++) ::sched_yield();
  lock.lock();
}

bool Driver::attend(Lock& lock) {
  if (!Interruption::is_due()) return false;
  lock.unlock();
  Interruption::look();
  lock.lock();
  return true;
}

// ---- Waiting ----

bool Driver::wait(Lock& lock, Awaited& awaited, Limit limit, bool drives) {
  Inside inside(*this);
  const Sleeper self{awaited, drives, limit.has_value()};
  bool looked = false;
  while (!awaited.is_over()) {
    if (attend(lock)) continue;
    if (limit && looked && Clock::now() >= *limit) break;
    looked = true;
    if (!closing_ && may_drive(self) && try_take())
      drive(lock, &awaited, limit);
    else
      sleep(lock, awaited, limit, drives);
  }
  hand_over(lock, limit);
  return awaited.is_over();
}

bool Driver::may_drive(const Sleeper& sleeper) const {
  return sleeper.drives && !(sleeper.limited && needs_patience_) && !sleeper.awaited.is_over();
}

// Precondition: this thread has the role. It has left the role when this returns.
void Driver::drive(Lock& lock, Awaited* awaited, Limit limit) {
  driving_ = true;
  driven_for_ = awaited;
  drives_++;
  work_.drive(lock, awaited, limit);
  driven_for_ = nullptr;
  driving_ = false;
  driven_ = false;
  changed_.notify_all();
}

// Sleeps until `awaited` is over, the role is free, or the limit has passed.
void Driver::sleep(Lock& lock, Awaited& awaited, Limit limit, bool drives) {
  Sleeper self{awaited, drives, limit.has_value()};
  asleep_.push_back(&self);
  sleepers_ += drives;
  hand_over(lock, limit);
  if (driven_ && !driven_for_) work_.wake();  // the thread that drives leaves the role to this one
  if (!limit && Interruption::watches()) limit = Clock::now() + Interruption::kEvery;
  auto woken = [&] { return self.woken; };
  if (limit)
    self.changed.wait_until(lock, *limit, woken);
  else
    self.changed.wait(lock, woken);
  self.woken ? entering_-- : sleepers_ -= drives;
  std::erase(asleep_, &self);
}

// Counts the sleeper in entering_, so that the thread that drives lets it in.
void Driver::wake(Sleeper& sleeper) {
  if (std::exchange(sleeper.woken, true)) return;
  sleepers_ -= sleeper.drives;
  entering_++;
  sleeper.changed.notify_one();
}

bool Driver::wake_those_over() {
  bool any = false;
  for (Sleeper* each : asleep_)
    if (!each->woken && each->awaited.is_over()) wake(*each), any = true;
  return any;
}

// ---- The role ----

bool Driver::waited_for() const {
  return std::ranges::any_of(asleep_, [this](Sleeper* each) { return may_drive(*each); });
}

void Driver::hand_over(Lock& lock, Limit limit) {
  while (!driven_ && !closing_) {
    for (Sleeper* each : asleep_)
      if (may_drive(*each)) return wake(*each);
    if (!work_.has_work()) return;
    if (has_thread()) return call_thread();
    if ((limit && Clock::now() >= *limit) || Interruption::has_ended()) return;
    if (try_take()) drive(lock, nullptr, limit);
  }
}

// This leaves the role, and then looks for work. A thread with work for another one adds the work,
// and then looks whether somebody drives. So one of the two sees the other.
void Driver::release() {
  driven_ = false;
  if (!closing_ && !work_.has_work()) return;
  Lock lock = enter();
  changed_.notify_all();
  hand_over(lock, {});
}

// ---- The library's thread ----

void Driver::make_thread() {
  if (!thread_.joinable()) thread_ = start_thread(name_, [this] { work(); });
}

// Blocking calls must not fail because the system refuses a thread: threads that wait can drive.
bool Driver::has_thread() {
  try {
    make_thread();
    return true;
  } catch (const std::exception& error) {
    log_debug("{}; who waits does its work", error.what());
    return false;
  }
}

void Driver::call_thread() {
  if (needs_patience_) return call_thread_back();
  called_ = true;
  if (thread_sleeps_) call_.notify_one();
}

void Driver::call_thread_back() {
  at_once_ = true;
  call_.notify_one();
}

// `quiet`: nobody has driven during a nap. With needs_patience_, a thread with a limit may have
// left a step that blocks.
bool Driver::should_take_over(bool quiet) const {
  return work_.has_work() && !closing_ && (quiet || needs_patience_) && !waited_for();
}

void Driver::work() {
  Lock lock(mutex_);
  uint64_t seen = drives_;
  for (int naps = 0;;) {
    called_ = at_once_ = false;
    while (work_.call_back(lock)) {
    }
    if (stopping_) return;
    const bool quiet = seen == drives_;
    if (should_take_over(quiet) && try_take()) {
      drive(lock, nullptr, {});
      hand_over(lock, {});
      naps = 0;
      seen = drives_;
    } else if (!quiet || (naps > 0 && !driven_)) {
      naps = quiet && !work_.has_work() ? naps - 1 : kIdleNaps;
      seen = drives_;
      call_.wait_for(lock, kNap, [this] { return stopping_ || at_once_; });
    } else {
      thread_sleeps_ = true;
      call_.wait(lock, [this] { return stopping_ || at_once_ || called_; });
      thread_sleeps_ = false;
    }
  }
}

// ---- The end ----

void Driver::close(Lock& lock, const std::function<void()>& finish) {
  closing_ = true;
  work_.wake();
  changed_.wait(lock, [this] { return try_take(); });
  finish();
  stopping_ = true;
  call_.notify_one();
  if (thread_.joinable()) {
    lock.unlock();
    thread_.join();
    lock.lock();
  }
  while (work_.call_back(lock)) {
  }
  changed_.wait(lock, [this] { return inside_ == 0; });
}

}  // namespace ringcoll
