// The rate at which one core reads memory: what a comparison of two arrays is held against.
// A shared object for perf/delta.py.
#include <stddef.h>
#include <stdint.h>

// The sum of two arrays, read side by side. Four sums each, so that no addition waits for another.
uint64_t read_two(const uint64_t* left, const uint64_t* right, size_t count) {
  enum { kUnrolled = 32 };
  uint64_t sums[kUnrolled] = {0}, total = 0;
  size_t i = 0;
  for (; i + kUnrolled <= count; i += kUnrolled)
    for (size_t k = 0; k < kUnrolled; k++) sums[k] += left[i + k] + right[i + k];
  for (; i < count; i++) total += left[i] + right[i];
  for (size_t k = 0; k < kUnrolled; k++) total += sums[k];
  return total;
}
