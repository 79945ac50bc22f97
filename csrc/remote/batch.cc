#include "remote/batch.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/interruption.h"
#include "remote/regions.h"

namespace ringcoll::remote {
namespace {

// The batch whose `done` this thread is in.
thread_local const Batch* calling_back = nullptr;

void check_copy(const Copy& copy) {
  check(copy.local != nullptr || copy.bytes == 0, Code::kInvalidArgument,
        "a copy of {} bytes to or from NULL", copy.bytes);
  check(!copy.sources.empty(), Code::kInvalidArgument, "a copy names no region");
  check(!copy.writes || copy.sources.size() == 1, Code::kInvalidArgument,
        "a write names {} regions: write to each by itself", copy.sources.size());
  check(copy.writes || !copy.notice, Code::kInvalidArgument,
        "a read has a notice: only writes give one");
  for (const Source& source : copy.sources) {
    check_range(source.offset, copy.bytes, source.region->bytes);
    check_writable(!copy.writes || source.region->writable);
  }
}

}  // namespace

Batch::Batch(std::vector<Copy> copies, Duration limit, Done done)
    : copies_(std::move(copies)), deadline_(limit), done_(std::move(done)) {
  std::ranges::for_each(copies_, check_copy);
}

bool Batch::wait(double limit_s) {
  Deadline limit(seconds(limit_s < 0 ? 1e10 : limit_s));
  std::unique_lock lock(mutex_);
  while (state_ != State::kEnded) {
    if (state_ == State::kCallingBack && teller_ == std::this_thread::get_id()) break;
    if (limit.passed() || Interruption::has_ended()) return false;
    wait_attended(ended_, lock, limit.left());
  }
  if (error_) throw *error_;
  return true;
}

bool Batch::has_ended() const {
  std::lock_guard lock(mutex_);
  return state_ != State::kRunning;
}

bool Batch::may_wait() const {
  std::lock_guard lock(mutex_);
  return calling_back == nullptr || calling_back == this || state_ == State::kEnded;
}

void Batch::end(std::optional<Error> error) {
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kRunning) return;
    state_ = State::kCallingBack;
    teller_ = std::this_thread::get_id();
    error_ = std::move(error);
  }
  const Batch* outer = std::exchange(calling_back, this);
  if (done_) done_(error_);
  calling_back = outer;
  {
    std::lock_guard lock(mutex_);
    state_ = State::kEnded;
    teller_ = {};
    ended_.notify_all();  // with the lock: whoever waits may destroy the batch
  }
}

}  // namespace ringcoll::remote
