// Allocations, of a thread, or large ones of any: counted, and failing where a test wants them to.
// Of the whole test program, which replaces operator new.
#pragma once

#include <cstddef>

namespace ringcoll::testing {

/// Of this thread so far.
int allocations();
/// Of this thread: after so many more allocations one fails, the next after it does not. -1: none
/// fails.
void fail_allocation_after(int count);

/// Those of at least so many bytes, of any thread, while it lives. One at a time.
class LargeAllocations {
 public:
  explicit LargeAllocations(size_t bytes);
  ~LargeAllocations();
  LargeAllocations(const LargeAllocations&) = delete;
  LargeAllocations& operator=(const LargeAllocations&) = delete;

  /// So far, those that were refused among them.
  int made() const;
  /// Whether they fail from now on.
  void refuse(bool on);
};

}  // namespace ringcoll::testing
