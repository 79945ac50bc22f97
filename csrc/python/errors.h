// Turns failures of the library into Python exceptions.
#pragma once

#include <string>

#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// Describes a failed call of the library. A copy, since the thread's next failure overwrites what
/// the library keeps.
struct Failure {
  rc_status status = RC_OK;
  int rank = -1;
  std::string message;
  rc_message_info info{sizeof(rc_message_info), -1, -1, -1};  // the message that was matched

  /// Describes this thread's last failed call, which has returned `status`.
  static Failure last(rc_status status);
};

/// Raises the exception of ringcoll.errors for failure.status. Needs the GIL.
[[noreturn]] void raise(const Failure& failure);
/// Raises InvalidArgument, for calls that are refused before the library is called. Needs the GIL.
[[noreturn]] void raise_invalid(const std::string& message);

}  // namespace ringcoll::python
