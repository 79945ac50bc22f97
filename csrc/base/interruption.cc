#include "base/interruption.h"

#include <utility>

namespace ringcoll {

Interruption::Interruption(std::function<bool()> asks, std::function<void()> ends)
    : asks_(std::move(asks)), ends_(std::move(ends)), outer_(std::exchange(current, this)) {}

Interruption::~Interruption() { current = outer_; }

bool Interruption::watches() {
  if (!current || current->ended_) return false;
  current->is_due_now();  // starts the time to the first question
  return true;
}

bool Interruption::is_due_now() {
  if (ended_) return false;
  auto now = Clock::now();
  if (!next_) next_ = now + kEvery;
  return now >= *next_;
}

// While the caller is asked, it may make other calls, which this interruption does not concern.
void Interruption::ask() {
  current = nullptr;
  ended_ = asks_();
  current = this;
  next_ = Clock::now() + kEvery;
  if (ended_) ends_();
}

void wait_attended(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                   Duration limit) {
  constexpr Duration kLongest = std::chrono::hours(1);  // a time point must not overflow
  changed.wait_for(lock, Interruption::longest_sleep(std::min(limit, kLongest)));
  if (!Interruption::is_due()) return;
  lock.unlock();
  Interruption::look();
  lock.lock();
}

}  // namespace ringcoll
