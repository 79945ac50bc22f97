#include "connect/worker.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "connect/batch.h"

namespace ringcoll {

void Connector::State::Worker::begin(const Target& to, Ends ends, Deadline deadline, Done done) {
  {
    std::unique_lock lock(mutex_);
    if (stopping_ || (!working_ && !start_thread())) {
      lock.unlock();
      return done(Fd(), Unmade{Error(Code::kTransport, "there is no thread to make a connection",
                                     to.peer)});
    }
    wanted_.push_back({to, ends, deadline, std::move(done)});
  }
  state_.tell_waiting();
}

// Precondition: the lock is held.
bool Connector::State::Worker::start_thread() {
  // The new thread inherits the mask: signals are for the application's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this] { work(); }).detach();
    working_ = true;
  } catch (const std::system_error& error) {
    log_debug("a thread for connections: {}", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return working_;
}

// Runs in a detached thread. Once `working_` is false, stop() may return and this object may end.
// So this function touches nothing afterwards but the lock that it holds.
void Connector::State::Worker::work() {
  std::unique_lock lock(mutex_);
  std::optional<Batch> batch(std::in_place, state_);
  begun_ = 0;
  for (take_wanted(*batch); !batch->empty(); take_wanted(*batch)) {
    lock.unlock();
    if (auto ended = batch->step())
      waiting_.extract(ended->number).mapped()(std::move(ended->fd), ended->unmade);
    lock.lock();
  }
  batch.reset();
  working_ = false;
  over_.notify_all();
}

// Precondition: the lock is held.
void Connector::State::Worker::take_wanted(Batch& batch) {
  for (; !wanted_.empty(); wanted_.pop_front()) {
    Wanted& one = wanted_.front();
    batch.add(one.to, one.ends, one.deadline);
    waiting_[begun_++] = std::move(one.done);
  }
}

void Connector::State::Worker::settle(Duration limit) {
  std::unique_lock lock(mutex_);
  over_.wait_for(lock, limit, [this] { return !working_; });
}

void Connector::State::Worker::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  over_.wait(lock, [this] { return !working_; });
}

}  // namespace ringcoll
