// How one rank falls asleep and another wakes it up. Each of them writes words of its own alone.
//
// The sleeper stores its word `waiting`, and then polls what it waits for. A peer stores what the
// sleeper may wait for, and then reads the sleeper's `waiting` (Dekker's algorithm). At least one
// of the two has to see the other's store. Every processor lets a load pass the store before it, so
// both sides need a full fence.
//
// The sleeper has that fence. The peer would need it for every message. On x86 the message would
// then wait until others see its store: a message of 1 KiB would take a quarter longer. There the
// sleeper makes up for the missing fence by time. A store waits only for the stores before it and
// their cache lines, and the sleeper polls for longer than that takes. On other processors stores
// may pass one another, and no such time is known; there the peer has the fence.
//
// tests/orders tries these functions with all orders that the memory model of C++ allows.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>

#include "base/clock.h"
#include "base/order.h"

namespace ringcoll::shm {

/// For a peer whose sleeper does not go on polling.
struct FullFence {
  void operator()() const noexcept { full_fence(); }
};

/// For a peer whose sleeper goes on polling (see above).
struct FenceUnlessX86 {
  void operator()() const noexcept {
#ifndef __x86_64__
    full_fence();
#endif
  }
};

/// True if the peer has to be woken up. The caller has stored what the peer may sleep for; this
/// reads the peer's word `waiting`. The peer stored how to wake it before that word.
template <typename Word, typename Order>
bool sleeps(const Word& waiting, Order&& order) noexcept {
  order();
  return observe(waiting) != 0;
}
template <typename Word>
bool sleeps(const Word& waiting) noexcept {
  return sleeps(waiting, FenceUnlessX86());
}

/// Announces that the caller is about to sleep. Afterwards the caller polls once more.
template <typename Word, typename Order = FullFence>
void fall_asleep(Word& waiting, Order&& order = {}) noexcept {
  publish(waiting, 1);
  order();
}

/// The time after which earlier stores of peers have arrived. Processors guarantee no bound. But
/// they have at most some 100 stores under way, each for a line in another core or in memory.
/// Should one take longer, the sleeper sleeps until its limit.
inline constexpr Duration kStoresArrive = std::chrono::microseconds(10);

/// Polls after fall_asleep(). False: ready() is false, and each peer that makes it true from now on
/// has seen `waiting`, and wakes the caller up.
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
