// A full fence between threads, processes and the kernel.
#pragma once

#include <atomic>

namespace ringcoll {

/// What was read or written before it, also by the kernel for this thread, comes before what is
/// after it. ThreadSanitizer knows no fences, and does not see what the kernel does.
inline void full_fence() noexcept {
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace ringcoll
