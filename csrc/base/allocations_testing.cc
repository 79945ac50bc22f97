#include "base/allocations_testing.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

// How many allocations of this thread are still to succeed before one fails; -1: no end.
thread_local int left = -1;
thread_local int made = 0;

std::atomic<size_t> large_bytes = SIZE_MAX;
std::atomic<int> large_made = 0;
std::atomic<bool> large_refused = false;

bool is_refused(size_t bytes) {
  if (bytes < large_bytes.load(std::memory_order_relaxed)) return false;
  large_made++;
  return large_refused;
}

}  // namespace

int ringcoll::testing::allocations() { return made; }
void ringcoll::testing::fail_allocation_after(int count) { left = count; }

namespace ringcoll::testing {

LargeAllocations::LargeAllocations(size_t bytes) {
  large_made = 0;
  large_bytes = bytes;
}
LargeAllocations::~LargeAllocations() {
  large_bytes = SIZE_MAX;
  large_refused = false;
}
int LargeAllocations::made() const { return large_made; }
void LargeAllocations::refuse(bool on) { large_refused = on; }

}  // namespace ringcoll::testing

// Arrays included. Inlined, GCC 12 would take them for a mismatched pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  made++;
  if ((left >= 0 && left-- == 0) || is_refused(bytes)) throw std::bad_alloc();
  if (void* memory = std::malloc(std::max<size_t>(bytes, 1))) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(std::max<size_t>(bytes, 1));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
