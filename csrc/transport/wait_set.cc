#include "transport/wait_set.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace ringcoll {
namespace {

// A sleep without a bell lasts no longer, since nobody can end it.
constexpr Duration kLongestWithoutABell = std::chrono::milliseconds(1);

timespec to_timespec(Duration time) {
  auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::max(time, Duration::zero()));
  return {static_cast<time_t>(ns.count() / 1'000'000'000),
          static_cast<long>(ns.count() % 1'000'000'000)};
}

}  // namespace

/// A sleep: wake() finds its bell as long as this object lives.
class WaitSet::Asleep {
 public:
  explicit Asleep(WaitSet& set) : set_(set) {
    std::unique_ptr<Bell> bell = set.bells_.take();
    std::lock_guard lock(set.mutex_);
    set.bell_ = std::move(bell);
  }
  // Peers ring the bell until end_wait(). Afterwards another sleep may have it.
  ~Asleep() {
    set_.end_wait();
    std::unique_ptr<Bell> bell;
    {
      std::lock_guard lock(set_.mutex_);
      bell = std::move(set_.bell_);
    }
    set_.bells_.give_back(std::move(bell));
  }
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;

 private:
  WaitSet& set_;
};

void WaitSet::add(Transport& part) {
  if (std::ranges::find(parts_, &part) == parts_.end()) parts_.push_back(&part);
}

bool WaitSet::may_be_ready() {
  bool any = false;
  for (Transport* part : parts_) any |= part->may_be_ready(nullptr);
  return any;
}

// An exchange reads the flag that wake() set, so this thread sees what was done before wake(). A
// store would not, and the next sleep might miss it.
void WaitSet::end_wait() {
  for (Transport* part : parts_) part->end_wait();
  if (woken()) woken_.exchange(false);
}

// A peer writes what may_be_ready() looks for before it notifies, so no notification is lost.
void WaitSet::sleep(Duration limit, const std::function<bool()>& look) {
  Asleep asleep(*this);
  const Bell& bell = *bell_;
  fds_.assign(1, {bell.fd(), POLLIN, 0});
  Sleep sleep{bell, fds_};
  bool any = false;
  for (Transport* part : parts_) any |= part->may_be_ready(&sleep);
  if (any || woken() || (look && look())) return;
  timespec timeout = to_timespec(bell.fd() >= 0 ? limit : std::min(limit, kLongestWithoutABell));
  if (::ppoll(fds_.data(), fds_.size(), &timeout, nullptr) > 0 && fds_[0].revents != 0)
    bell.silence();
}

// The bell is rung under the lock, or it might be another sleep's by now.
void WaitSet::wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  if (bell_) bell_->ring();
}

}  // namespace ringcoll
