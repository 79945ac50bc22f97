// In which order other threads and processes see what this thread does.
//
// A word that several look at is published by its writer and observed by the others. Where each of
// two sides writes a word and then reads the other's, both also need a full fence
// (transport/shm/sleep.h). An access that needs no order says std::memory_order_relaxed, and why.
// The words are std::atomic, or those of tests/orders, which tries every order that the memory
// model allows.
#pragma once

#include <atomic>

namespace ringcoll {

/// Stores `value`. All that this thread has read and written before is done for a thread that
/// observe()s this value.
template <typename Word, typename Value>
void publish(Word& word, Value value) noexcept {
  word.store(value, std::memory_order_release);
}

/// Loads the word. All that its publisher had done before is then visible to this thread.
template <typename Word>
auto observe(const Word& word) noexcept {
  return word.load(std::memory_order_acquire);
}

/// Orders all reads and writes before it, also those of the kernel for this thread, before all that
/// follow. ThreadSanitizer knows no fences, and does not see what the kernel does.
inline void full_fence() noexcept {
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// Orders all reads before it before those that follow: a reader copies bytes that may change, and
/// then looks whether they have. ThreadSanitizer knows no fences.
inline void read_fence() noexcept {
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

}  // namespace ringcoll
