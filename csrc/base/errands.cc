#include "base/errands.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

namespace ringcoll {

void Errands::settle(Duration limit) {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, limit, [this] { return working_ == 0; });
}

void Errands::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  jobs_.clear();
  ended_.wait(lock, [this] { return working_ == 0; });
}

bool Errands::run(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  if (stopping_) return false;
  jobs_.push_back(std::move(job));
  if (working_ == most_threads_) return true;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread([this] { work(); }).detach();
    working_++;
  } catch (const std::system_error&) {
    started = working_ > 0;  // or else nobody takes it
    if (!started) jobs_.pop_back();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

// The last thing that it touches of this is the lock, under which it says that it has ended.
void Errands::work() {
  std::unique_lock lock(mutex_);
  while (!jobs_.empty()) {
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = {};
    lock.lock();
  }
  working_--;
  ended_.notify_all();
}

}  // namespace ringcoll
