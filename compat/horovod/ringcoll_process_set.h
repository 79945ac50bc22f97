// Refuses process sets that cannot be made: all ranks get an error, and the job goes on. For every
// controller of Horovod.
//
// Threads: initialization and refusal run on Horovod's background thread, which holds the lock of
// the table meanwhile. Any other thread may call await_process_set().
#pragma once

#include <string>

#include "../controller.h"
#include "../global_state.h"
#include "../process_set.h"
#include "ringcoll_context.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// Why a process set cannot be initialized: the reason of the first rank that failed, which it
/// tells the others over the controller of the job. Empty if no rank failed. It begins with "rank
/// N: " unless all ranks failed. Collective. Throws if the ranks cannot communicate.
std::string refusal_of_any(Controller& job, const std::string& mine);

/// Throws the reason if a process set that hvd.init() asked for was refused.
void throw_refusal(ProcessSetTable& table);

/// Blocks until the background thread has initialized the process set. Returns its id, or
/// kProcessSetRefused with last_refusal() set, or Horovod's code for a shutdown.
int32_t await_process_set(HorovodGlobalState& state, int32_t id);

/// Why the last process set that this thread awaited was refused.
const std::string& last_refusal();

constexpr int32_t kProcessSetRefused = -7;

/// Initializes a registered process set on all ranks, or refuses it on all. Returns true if it is
/// new.
template <typename Context>
bool initialize_or_refuse(ProcessSetTable& table, int32_t id, const Context& context) {
  ProcessSet& process_set = table.Get(id);
  if (process_set.initialization_done) return false;
  std::string reason;
  try {
    process_set.Initialize(context);
  } catch (const RefusedElsewhere&) {
  } catch (const std::exception& error) {  // the others wait for this rank's result
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
