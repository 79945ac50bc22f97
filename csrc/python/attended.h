// Runs blocking functions of the library that take no rc_interrupted_fn: creating, splitting,
// shrinking and closing a communicator.
#pragma once

#include <functional>

#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// Runs `body` without the GIL and returns the communicator that it has made, or null if it has
/// made none. Raises the error of `body`. In the main thread, except in a callback, `body` runs on
/// a thread of its own, so that Python's signal handlers run meanwhile. If a handler raises, this
/// function raises the same at once. It abandons the thread, which later destroys what it makes.
/// `cancel` makes `body` end soon and may be called several times. With `cancel`, this function
/// waits for `body` before it raises, unless a handler raises a second time.
rc_comm* attended(std::function<rc_status(rc_comm**)> body,
                  const std::function<void()>& cancel = {});

}  // namespace ringcoll::python
