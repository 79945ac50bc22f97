// The allocations of a thread: counted, and failing where a test wants them to. Of the whole test
// program, which replaces operator new.
#pragma once

namespace ringcoll::testing {

/// Of this thread so far.
int allocations();
/// Of this thread: after so many more allocations one fails, the next after it does not. -1: none
/// fails.
void fail_allocation_after(int count);

}  // namespace ringcoll::testing
