// Process sets that cannot be had: an error on all ranks, which the job survives. Under every
// controller of Horovod.
//
// Threads: what initializes or refuses runs on Horovod's background thread, which holds the lock of
// the table meanwhile; await_process_set() is for any other.
#pragma once

#include <string>

#include "../controller.h"
#include "../global_state.h"
#include "../process_set.h"
#include "ringcoll_context.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// Why the first rank that could not initialize a process set could not, which it tells the others
/// over the controller of the job; empty if all could. With "rank N: " before it, unless no rank
/// could. Throws if the ranks cannot talk.
std::string refusal_of_any(Controller& job, const std::string& mine);

/// Throws the reason if a process set was refused that hvd.init() has asked for.
void throw_refusal(ProcessSetTable& table);

/// Blocks until the background thread has initialized the process set. Returns its id, or
/// kProcessSetRefused with last_refusal() set, or that Horovod is shutting down.
int32_t await_process_set(HorovodGlobalState& state, int32_t id);

/// Why the last process set that this thread awaited was refused.
const std::string& last_refusal();

constexpr int32_t kProcessSetRefused = -7;

/// Initializes a registered process set on all ranks, or refuses it on all. True if it is new.
template <typename Context>
bool initialize_or_refuse(ProcessSetTable& table, int32_t id, const Context& context) {
  ProcessSet& process_set = table.Get(id);
  if (process_set.initialization_done) return false;
  std::string reason;
  try {
    process_set.Initialize(context);
  } catch (const RefusedElsewhere&) {
  } catch (const std::exception& error) {  // the others wait for this rank's word
    reason = *error.what() != '\0' ? error.what() : "unknown error";
  }
  reason = refusal_of_any(*table.Get(0).controller, reason);
  if (reason.empty()) return true;
  table.RefuseProcessSet(id, reason);
  return false;
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
