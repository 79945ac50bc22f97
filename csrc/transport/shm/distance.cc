#include "transport/shm/distance.h"

#include <sched.h>

#include <algorithm>

#include "base/order.h"

namespace ringcoll::shm {
namespace {

// Polls between two looks at the clock, which would be in what is measured: more than the longest
// trip takes.
constexpr int kPolls = 512;
// In a trip's word: it was the last one. What was found, the peer may see a little later.
constexpr uint64_t kOver = 1, kNext = 2;

// In DistanceLine::told: a number of a CPU, and one, and this bit.
constexpr uint32_t kWants = uint32_t{1} << 31;
uint32_t cpu_of(uint32_t told) { return told & ~kWants; }
uint32_t this_cpu() { return static_cast<uint32_t>(::sched_getcpu() + 1); }

// DistanceLine::found: the round trip, and between which two CPUs. 0: nothing was found.
constexpr int kNsBits = 16, kCpuBits = 24;
constexpr uint64_t kMostNs = (1 << kNsBits) - 1, kCpuMask = (1 << kCpuBits) - 1;
uint64_t between(uint32_t a, uint32_t b) {
  return (std::min(a, b) & kCpuMask) << kCpuBits | (std::max(a, b) & kCpuMask);
}

template <typename Ready>
bool spin(Clock::time_point end, Ready&& ready) {
  auto poll = [&] {
    for (int i = 0; i < kPolls; i++)
      if (ready()) return true;
    return false;
  };
  if (poll()) return true;
  end = std::min(end, Clock::now() + DistanceMeter::kPatience);
  while (!poll())
    if (Clock::now() >= end) return false;
  return true;
}

}  // namespace

// In memory that another part's link may have used. Who sees whose it is, sees no older
// word.
DistanceMeter::DistanceMeter(const Ends& ends) : ends_(ends) {
  DistanceLine& mine = ends_.mine;
  mine.trip.store(0, std::memory_order_relaxed);
  mine.found.store(0, std::memory_order_relaxed);
  mine.told.store(this_cpu() | kWants, std::memory_order_relaxed);
  publish(mine.whose, ends_.my_base + 1);
}

// Whether the peer has made its end. While it says so its unit is no other part's: that waits for
// this end to be gone (reserve.h).
bool DistanceMeter::open() const { return observe(ends_.theirs.whose) == ends_.their_base + 1; }

// Written when it changes, for the peer looks at this line after calls.
void DistanceMeter::tell(bool wants) {
  wants_ = wants;
  uint32_t told = this_cpu() | (wants ? kWants : 0);
  if (ends_.mine.told.load(std::memory_order_relaxed) != told)
    ends_.mine.told.store(told, std::memory_order_relaxed);
}

// Of three words that both ends read alike.
Distance DistanceMeter::distance(Clock::time_point now) const {
  if (!open()) return {};
  uint32_t here = cpu_of(ends_.mine.told.load(std::memory_order_relaxed));
  uint32_t there = cpu_of(ends_.theirs.told.load(std::memory_order_relaxed));
  if (here == there && here != 0) return {.state = Distance::State::kOneCore};
  const DistanceLine& leader = ends_.leads ? ends_.mine : ends_.theirs;
  uint64_t found = observe(leader.found);
  if (found == 0 || found >> kNsBits != between(here, there)) return {};
  auto ns = static_cast<int>(found & kMostNs);
  Clock::time_point at{Duration(leader.found_at.load(std::memory_order_relaxed))};
  return {.state = ns < Distance::kMostNearNs ? Distance::State::kNear : Distance::State::kFar,
          .round_trip_ns = ns,
          .age = std::max(now - at, Duration::zero())};
}

void DistanceMeter::take(Clock::time_point now) {
  tell(wants_);
  if (!open() || distance(now).state == Distance::State::kOneCore) return tell(false);
  bool met = meet();
  rest_ = met ? kLeastRest : std::min(rest_ * 2, kMostRest);
  rested_at_ = now + rest_;
  tell(false);
}

// What an end wants, it says one look before it spins for it: by the next one the peer has read it,
// as far as calls tell. So nobody spins because of a wish that the other cannot know of yet.
void DistanceMeter::look(Clock::time_point now, Duration old) {
  bool wanted = wants_;
  quiet_ = 0;
  peer_told_ = ends_.theirs.told.load(std::memory_order_relaxed);
  bool peer_wants = open() && (peer_told_ & kWants) != 0;
  tell(wants_);
  Distance known = distance(now);
  bool one_core = known.state == Distance::State::kOneCore;
  bool due = known.state == Distance::State::kUnknown || known.age >= old;
  tell(!one_core && now >= rested_at_ && (due || peer_wants));
  if (wants_ && wanted && peer_wants) take(now);
}

bool DistanceMeter::is_quiet() {
  return !wants_ && quiet_++ < kQuiet &&
         ends_.mine.told.load(std::memory_order_relaxed) == this_cpu() &&
         ends_.theirs.told.load(std::memory_order_relaxed) == peer_told_;
}

bool DistanceMeter::meet() {
  tries_++;
  auto end = Clock::now() + kLongest;
  return ends_.leads ? lead(end) : follow(end);
}

bool DistanceMeter::make_trip(Clock::time_point end) {
  number_ += kNext;
  ends_.mine.trip.store(number_, std::memory_order_relaxed);
  return spin(end, [&] { return ends_.theirs.trip.load(std::memory_order_relaxed) == number_; });
}

bool DistanceMeter::lead(Clock::time_point end) {
  number_ &= ~kOver;
  if (!make_trip(end)) return false;  // the peer is not there
  Duration least = Duration::max();
  bool met = true;
  for (int batch = 0; met && batch < kBatches; batch++) {
    auto begun = Clock::now();
    if (begun >= end) break;
    for (int trip = 0; met && trip < kTripsOfABatch; trip++) met = make_trip(end);
    if (met) least = std::min(least, Clock::now() - begun);
  }
  if (least == Duration::max()) return false;
  announce(least / (2 * kTripsOfABatch));
  ends_.mine.trip.store(number_ |= kOver, std::memory_order_relaxed);
  return true;
}

// Between the CPUs that both ends have told; should one have moved meanwhile, it tells another one
// soon, and this does not count.
void DistanceMeter::announce(Duration round_trip) {
  DistanceLine& mine = ends_.mine;
  uint32_t there = cpu_of(ends_.theirs.told.load(std::memory_order_relaxed));
  uint32_t here = cpu_of(mine.told.load(std::memory_order_relaxed));
  auto ns = std::chrono::nanoseconds(round_trip).count();
  auto shown = std::clamp<uint64_t>(static_cast<uint64_t>(ns), 1, kMostNs);
  mine.found_at.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  publish(mine.found, between(here, there) << kNsBits | shown);
}

// Echoes whatever is new, also what the leader has left there when it was alone. Not the end of a
// time before.
bool DistanceMeter::follow(Clock::time_point end) {
  const std::atomic<uint64_t>& theirs = ends_.theirs.trip;
  uint64_t seen = theirs.load(std::memory_order_relaxed);
  if ((seen & kOver) != 0) number_ = seen;
  end += kPatience;
  while (true) {
    if (!spin(end, [&] { return (seen = theirs.load(std::memory_order_relaxed)) != number_; }))
      return false;
    number_ = seen;
    if ((seen & kOver) != 0) return true;
    ends_.mine.trip.store(seen, std::memory_order_relaxed);
  }
}

}  // namespace ringcoll::shm
