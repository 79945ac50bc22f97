// How a failure of the library becomes a Python exception.
#pragma once

#include <string>

#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// What a failed call of the library was about; a copy of what the thread's next failure
/// overwrites.
struct Failure {
  rc_status status = RC_OK;
  int rank = -1;
  std::string message;
  rc_message_info info{sizeof(rc_message_info), -1, -1, -1};  // of a message that is too long

  /// That of this thread's last failed call.
  static Failure last(rc_status status);
};

/// Raises the exception of ringcoll.errors that belongs to the status. Needs the GIL.
[[noreturn]] void raise(const Failure& failure);
/// Raises InvalidArgument: refused before the library was called.
[[noreturn]] void raise_invalid(const std::string& message);

}  // namespace ringcoll::python
