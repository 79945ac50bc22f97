#include "connect/worker.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "connect/batch.h"

namespace ringcoll {

void Connector::State::Worker::begin(const Target& to, Ends ends, Deadline deadline, Done done) {
  try {
    std::lock_guard lock(mutex_);
    if (stopping_) throw Error(Code::kTransport, "the job ends here, so nothing is connected");
    if (!working_) start_thread("ringcoll-dial", [this] { work(); }).detach();
    working_ = true;
    wanted_.push_back({to, ends, deadline, std::move(done)});
  } catch (const Error& refused) {
    return done(Fd(), Unmade{Error(refused.code(), refused.what(), to.peer)});
  }
  state_.tell_waiting();
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
