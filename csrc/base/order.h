// In which order other threads and processes see what this one does.
//
// Words that several look at are published by the one that writes them, and observed by the others.
// Where that is not enough, since each of two looks at what the other has written, there is a full
// fence (transport/shm/sleep.h). What needs no order says std::memory_order_relaxed, and why. The
// words are std::atomic, or those of tests/orders, which tries what the memory model allows.
#pragma once

#include <atomic>

namespace ringcoll {

/// All that this thread has read and written before is done for whoever observe()s this value.
template <typename Word, typename Value>
void publish(Word& word, Value value) noexcept {
  word.store(value, std::memory_order_release);
}

/// With it comes all that whoever has published this value had done before.
template <typename Word>
auto observe(const Word& word) noexcept {
  return word.load(std::memory_order_acquire);
}

/// What was read or written before it, also by the kernel for this thread, comes before what is
/// after it. ThreadSanitizer knows no fences, and does not see what the kernel does.
inline void full_fence() noexcept {
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace ringcoll
