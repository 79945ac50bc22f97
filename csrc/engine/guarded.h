// Keeps exceptions from crossing the C ABI: each becomes a status, and a message for the caller.
#pragma once

#include <exception>
#include <string>

#include "base/error.h"

namespace ringcoll {

/// What ringcoll_error_message() and ringcoll_error_rank() say in a thread.
struct LastError {
  std::string message{};
  Rank rank = kNobody;
};
/// Of the calling thread.
LastError& last_error();

/// Keeps the error for the calling thread and returns its status.
rc_status failed(const Error& error);

/// Runs the body of a function of the C ABI.
template <typename Body>
rc_status guarded(Body&& body) {
  try {
    body();
    return RC_OK;
  } catch (const std::exception& caught) {
    return failed(as_error(caught));
  }
}

}  // namespace ringcoll
