// Functions of the library that block, and that no rc_interrupted_fn ends: making, splitting,
// shrinking and closing a communicator.
#pragma once

#include <functional>

#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// Calls `body` without the GIL, in the main thread so that handlers of signals are called
/// meanwhile: `body` then runs in a thread of its own. Returns the communicator that it has made,
/// null if none, or raises its error. What a handler raises is raised at once, and the thread left
/// to itself: it frees what it makes. With `cancel`, which may be called several times and makes
/// `body` end soon, its end is waited for first, unless a handler raises once more.
rc_comm* attended(std::function<rc_status(rc_comm**)> body,
                  const std::function<void()>& cancel = {});

}  // namespace ringcoll::python
