// The one class of error. A message says what was being done, the call that failed, the reason and
// the link.
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
};

/// "PeerLost", "Timeout", …
const char* name_of(Code code);

/// Thrown by setup and by completed operations; "would block" is a return value, never an Error.
/// Caught in three places: coll/'s executor, the C ABI, and Horovod's Execute.
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

/// What was caught, as an Error: std::bad_alloc and all that is no Error become kInternal.
Error as_error(const std::exception& caught);

/// "connect: Connection refused": the name of a system call and the text of its errno.
std::string errno_text(const char* call, int error);

/// Throws Error(code, fmt::format(…)) if `condition` is false.
template <typename... Args>
void check(bool condition, Code code, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// A defect of ringcoll itself if `condition` is false.
template <typename... Args>
void invariant(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw Error(Code::kInternal, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ringcoll
