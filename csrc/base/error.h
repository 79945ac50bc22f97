// The one class of error. A message says what was being done, which call failed, why, and on which
// link.
#pragma once

#include <fmt/core.h>

#include <exception>
#include <string>
#include <utility>

#include "base/types.h"

namespace ringcoll {

enum class Code {
  kInvalidArgument = RC_INVALID_ARGUMENT,
  kTimeout = RC_TIMEOUT,
  kPeerLost = RC_PEER_LOST,
  kTransport = RC_TRANSPORT,
  kMismatch = RC_MISMATCH,
  kInternal = RC_INTERNAL,
  kAborted = RC_ABORTED,
  kTooLong = RC_TOO_LONG,
  kGone = RC_GONE,
  kRefused = RC_REFUSED,
};

/// "PeerLost", "Timeout", …
const char* name_of(Code code);

/// Thrown by setup and by completed operations; "would block" is a return value, never an Error. No
/// Error crosses the C ABI.
class Error : public std::exception {
 public:
  /// `rank` is the rank of the communicator to blame, or kNobody.
  Error(Code code, std::string message, Rank rank = kNobody)
      : code_(code), rank_(rank), message_(std::move(message)) {}

  Code code() const { return code_; }
  Rank rank() const { return rank_; }
  const char* what() const noexcept override { return message_.c_str(); }
  /// The same error, its message preceded by what was being done: "allreduce #41 (4 MiB): …".
  Error within(const std::string& doing) const {
    return Error(code_, doing + ": " + message_, rank_);
  }

 private:
  Code code_;
  Rank rank_;
  std::string message_;
};

/// Converts a caught exception: std::bad_alloc and everything that is not an Error become
/// kInternal.
Error as_error(const std::exception& caught);

/// "connect: Connection refused": the name of a system call and the text of its errno.
std::string errno_text(const char* call, int error);

/// Throws Error(code, fmt::format(…)) if `condition` is false.
template <typename... Args>
void check(bool condition, Code code, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error(kInternal) if `condition` is false, which is a defect of ringcoll itself.
template <typename... Args>
void invariant(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw Error(Code::kInternal, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ringcoll
