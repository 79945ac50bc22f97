// Functions that Python calls through ctypes. They return int: of a C++ bool only the lowest byte
// is defined.
#include <string>

#include "ringcoll_context.h"
#include "ringcoll_process_set.h"

using horovod::common::RingcollContext;

extern "C" {

int horovod_ringcoll_built() { return 1; }

int horovod_ringcoll_enabled() { return RingcollContext::Get().IsEnabled() ? 1 : 0; }

/// Why this life of Horovod failed to start or has ended; empty if no error did that. The text is
/// valid until the next call of this thread.
const char* horovod_ringcoll_error() {
  static thread_local std::string reason;
  reason = RingcollContext::Get().failure();
  return reason.c_str();
}

/// Why the last horovod_add_process_set() of this thread was refused. Valid until its next call.
const char* horovod_ringcoll_refusal() { return horovod::common::last_refusal().c_str(); }

}  // extern "C"
