// Waits for a word in memory that several processes may share (futex(2)).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace ringcoll {

/// Sleeps while the word is `seen`, at most for `limit`. May return earlier for no reason.
void wait_while(const std::atomic<uint32_t>& word, uint32_t seen, Duration limit);
/// Wakes all threads, of all processes, that sleep on the word. The caller has changed it before.
void wake_all(const std::atomic<uint32_t>& word);

}  // namespace ringcoll
