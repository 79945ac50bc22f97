// Calls of the library that need no communicator.
#pragma once

#include <string>

#include "python/errors.h"
#include "python/interpreter.h"
#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// Runs function() without the GIL and returns its status. Raises any error but `expected`.
template <typename Function>
rc_status without_gil(Function&& function, rc_status expected = RC_OK) {
  Failure outcome;
  {
    Released released;
    outcome.status = function();
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status != RC_OK && outcome.status != expected) raise(outcome);
  return outcome.status;
}

/// The text, which is freed.
inline std::string take_json(char* json) {
  std::string text(json);
  ringcoll_free(json);
  return text;
}

}  // namespace ringcoll::python
