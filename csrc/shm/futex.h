// Waiting on a 32-bit word that other processes see as well. The word may lie in a read-only
// mapping of shared memory. The kernel finds the waiters by the page, not by the address, and never
// writes to the word.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace ringcoll {

using FutexWord = std::atomic<uint32_t>;
static_assert(sizeof(FutexWord) == 4 && FutexWord::is_always_lock_free);

/// Blocks while `word` holds `expected`, until futex_wake(), or until `limit` has passed. May
/// return early.
void futex_wait(const FutexWord& word, uint32_t expected, Duration limit);
/// Wakes up all threads that wait on `word`, in this process or another.
void futex_wake(const FutexWord& word);

}  // namespace ringcoll
