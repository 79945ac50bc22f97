// How one rank falls asleep and another wakes it, by words that each writes alone.
//
// Who sleeps stores its word `waiting`, and then looks at what it waits for; who has stored what
// another may wait for then looks at that one's `waiting` (Dekker's algorithm). At least one of the
// two has to see what the other has stored. A store and a load behind it are what every processor
// reorders, so that takes a full fence on both sides.
//
// The one who sleeps has it. The other's would be part of every message, and on x86 each would have
// to wait until its store is seen by others: a message of 1 KiB would take a quarter longer. There
// the order that is missing is made up for by time: a store waits for nothing but the stores before
// it and their cache lines, and who sleeps goes on looking for longer than that takes. On other
// processors, where stores pass one another and no such time is known, there is the fence.
//
// tests/orders tries these functions with all that the memory model of C++ allows.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>

#include "base/clock.h"
#include "base/order.h"

namespace ringcoll::shm {

/// Of who is not waited for by one that goes on looking.
struct FullFence {
  void operator()() const noexcept { full_fence(); }
};

/// Of who is: see above.
struct FenceUnlessX86 {
  void operator()() const noexcept {
#ifndef __x86_64__
    full_fence();
#endif
  }
};

/// Of who has stored what a peer may sleep for, and now looks at the peer's word: whether it is to
/// be woken. What the peer has said of how to wake it, it has stored before the word.
template <typename Word, typename Order>
bool sleeps(const Word& waiting, Order&& order) noexcept {
  order();
  return observe(waiting) != 0;
}
template <typename Word>
bool sleeps(const Word& waiting) noexcept {
  return sleeps(waiting, FenceUnlessX86());
}

/// Of who is about to sleep, and looks once more afterwards.
template <typename Word, typename Order = FullFence>
void fall_asleep(Word& waiting, Order&& order = {}) noexcept {
  publish(waiting, 1);
  order();
}

/// A processor gives no bound, but has at most some 100 stores on their way, each for a line that
/// is with another core or in memory. Should one take longer, who waits sleeps until its limit.
inline constexpr Duration kStoresArrive = std::chrono::microseconds(10);

/// After fall_asleep(): false if ready() is not, nor becomes so by what was stored by peers that
/// have not seen it.
template <typename Ready>
bool is_ready_after_all(Ready&& ready) {
  Deadline arrived(kStoresArrive);
  while (!arrived.passed()) {
    if (ready()) return true;
    ::sched_yield();
  }
  return ready();
}

}  // namespace ringcoll::shm
