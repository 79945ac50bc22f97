#include "ringcoll_cycles.h"

#include <thread>

#include "ringcoll_context.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {
namespace {

// Without news a cycle begins after this time, since Horovod checks some things only in cycles
// (stalled tensors, a timeline that was started). Rank 0 has the shorter time and leads, so the
// others are asleep when it notifies them.
constexpr std::chrono::milliseconds kQuiet{50};
constexpr std::chrono::milliseconds kQuietOfOthers{200};
// Notifications of cycles that this rank began by itself stay in the channels, which have 32
// places, until it receives them after this number of cycles.
constexpr int kMostUnheard = 8;
constexpr std::chrono::nanoseconds kNow{1};
constexpr int kItself = -1;

}  // namespace

RingcollCycles& RingcollCycles::Get() {
  // Never destroyed, since threads may submit until the process ends.
  static RingcollCycles& cycles = *new RingcollCycles();
  return cycles;
}

void RingcollCycles::Submitted() {
  if (state_.exchange(kNews) != kAsleep) return;
  std::lock_guard<std::mutex> guard(bell_mutex_);
  // If the job has failed, the thread is awake already.
  if (open_) bell_->RingSelf();
}

void RingcollCycles::Begin(const RingcollLibrary& library, rc_comm* job, bool wish) {
  uint8_t all_wish = wish;
  RingcollCall call(RC_ALLREDUCE, RC_UINT8);
  call.call.op = RC_MIN;
  RingcollContext::Get().RunOnJob(call.Add(&all_wish, &all_wish, 1));
  if (!all_wish) return;
  std::lock_guard<std::mutex> guard(bell_mutex_);
  bell_.reset(new RingcollBell(library, job));  // frees that of the previous job
  open_ = true;
  next_ = 0;
  unheard_ = 0;
}

void RingcollCycles::Close() {
  std::lock_guard<std::mutex> guard(bell_mutex_);
  open_ = false;
}

bool RingcollCycles::TakeNews() { return state_.exchange(kNothing) == kNews; }

std::optional<RingcollToll> RingcollCycles::Hear(Clock::duration limit) {
  std::optional<RingcollToll> toll;
  RingcollContext::Get().CheckOnJob(bell_->Hear(limit, &toll));
  return toll;
}

int RingcollCycles::Sleep() {
  // The wait begins with polling. The yield lets a thread that has just got its result run first on
  // this core.
  std::this_thread::yield();
  for (;;) {
    auto left = over_ - Clock::now();
    int nothing = kNothing;
    bool sleeps =
        left > Clock::duration::zero() && state_.compare_exchange_strong(nothing, kAsleep);
    std::optional<RingcollToll> toll;
    if (sleeps) toll = Hear(left);
    bool news = TakeNews();
    if (toll && toll->cycle == next_ && toll->rank != bell_->rank()) return toll->rank;
    if (news || !toll) return kItself;
  }
}

bool RingcollCycles::Await() {
  if (!open_) return false;
  int begun_by = TakeNews() ? kItself : Sleep();
  if (++unheard_ == kMostUnheard) {
    while (Hear(kNow)) {
    }
    unheard_ = 0;
  }
  RingcollContext::Get().CheckOnJob(bell_->Ring(next_, begun_by));
  next_++;
  over_ = Clock::now() + (bell_->rank() == 0 ? kQuiet : kQuietOfOthers);
  return true;
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
