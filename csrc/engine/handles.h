// What the parts of the C ABI have in common: handles, and how results are handed out.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/config.h"
#include "base/error.h"
#include "base/fork.h"
#include "engine/engine.h"
#include "engine/guarded.h"

// Handles belong to the process that made them: a child that it forks has neither its threads nor
// its links.
struct rc_comm {
  std::unique_ptr<ringcoll::Engine> engine;
  int born = ringcoll::fork_number();
};
struct rc_request {
  std::shared_ptr<ringcoll::Request> request{};
  int born = ringcoll::fork_number();
};

namespace ringcoll {

inline bool is_inherited(int born) { return born != fork_number(); }

/// The engine of a caller's handle. Throws Error(kInvalidArgument) for NULL, and in a forked child.
Engine& engine_of(const rc_comm* comm);

/// A malloc'ed copy, for ringcoll_free().
char* copy_of(const std::string& text);

/// The log level is that of the knobs that were read last.
void set_log_level_from(const Config& config);

/// Sets the result to NULL, its value if the function fails.
template <typename Handle>
void begin_with_nothing(Handle** place, std::string_view name) {
  check(place != nullptr, Code::kInvalidArgument, "{} is NULL", name);
  *place = nullptr;
}

/// Wraps the caller's callback. If the request has failed, ringcoll_error_message() describes its
/// error there.
template <typename Asked>
Request::Done done_of(const Asked& asked, rc_request* handle) {
  if (!asked.done) return {};
  return [done = asked.done, state = asked.done_state, handle](const std::optional<Error>& error) {
    done(state, handle, error ? failed(*error) : RC_OK);
  };
}

/// Stores the handle in *request and calls `begin()`, which starts the request. If that throws, the
/// handle is freed.
template <typename Begin>
void hand_out(std::unique_ptr<rc_request> made, rc_request** request, Begin&& begin) {
  // Stored first: once the request has started, its callback may free the handle, and the memory
  // that *request is in.
  rc_request* handle = *request = made.release();
  try {
    begin();
  } catch (...) {
    made.reset(handle);
    *request = nullptr;
    throw;
  }
}

}  // namespace ringcoll
