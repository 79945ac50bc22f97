// Cache lines that are asked for before they are used, so that nobody waits for them.
#pragma once

namespace ringcoll {

/// Fetches the line at `at`, which is about to be read.
inline void prefetch_to_read(const void* at) noexcept {
#ifdef __x86_64__
  // GCC takes what only calls the builtin for a function without effects, and drops it.
  asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at);
#endif
}

/// Makes the line at `at` this core's own, which is about to write there: other cores give up what
/// they have of it meanwhile, for which a store, and so whatever comes after a fence, would wait.
inline void prefetch_to_write(void* at) noexcept {
#ifdef __x86_64__
  // The compiler takes it for one to read if it compiles for any processor. Those that do not know
  // the instruction pass over it.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

}  // namespace ringcoll
