#include "transport/tcp/waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace ringcoll::tcp {
namespace {

// A wait without a descriptor lasts no longer, so that its caller looks for wake().
constexpr Duration kLook = std::chrono::milliseconds(10);

}  // namespace

Fd WakeFds::take() {
  std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    Fd fd = std::move(free_.back());
    free_.pop_back();
    return fd;
  }
  free_.reserve(made_ + 1);  // so that give_back(), in a destructor, allocates nothing
  Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd) made_++;
  return fd;
}

void WakeFds::give_back(Fd fd) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(fd));
}

void Waker::wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  if (waiting_on_ < 0) return;
  // Written under the lock, or the descriptor might be another wait's by now. This fails only if
  // the counter is full, and then the wait ends anyway.
  uint64_t one = 1;
  [[maybe_unused]] ssize_t put = ::write(waiting_on_, &one, sizeof one);
}

Waker::Wait::Wait(Waker& waker) : waker_(waker), fd_(waker.fds_.take()) {
  std::lock_guard lock(waker_.mutex_);
  waker_.waiting_on_ = fd_.get();
}

Waker::Wait::~Wait() {
  {
    std::lock_guard lock(waker_.mutex_);
    waker_.waiting_on_ = -1;
    waker_.woken_ = false;
  }
  if (!fd_) return;
  uint64_t count;
  [[maybe_unused]] ssize_t got = ::read(fd_.get(), &count, sizeof count);
  waker_.fds_.give_back(std::move(fd_));
}

Duration Waker::Wait::at_most(Duration limit) const {
  std::lock_guard lock(waker_.mutex_);
  if (waker_.woken_) return Duration::zero();
  return std::clamp(limit, Duration::zero(), fd_ ? Duration::max() : kLook);
}

}  // namespace ringcoll::tcp
