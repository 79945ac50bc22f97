// Executes calls on a communicator, one at a time: advances the run, and waits, under the call's or
// the communicator's deadline and poison, for what it wants.
#pragma once

#include <cstdint>

#include "coll/call.h"
#include "coll/plan_cache.h"
#include "coll/run.h"
#include "coll/slots.h"
#include "comm/communicator.h"

namespace ringcoll {

class Executor {
 public:
  /// `comm` outlives it.
  explicit Executor(Communicator& comm);
  /// Waits a while for peers that still read this rank's arena.
  ~Executor();

  /// Runs the call to its end: outputs are complete, sends are with the network. One thread at a
  /// time. Throws Error; all but kInvalidArgument have poisoned the communicator.
  void run(const Call& call);

 private:
  void wait_for(const Want& want);

  Communicator& comm_;
  PlanCache plans_;
  Slots slots_;
  Run run_;
  uint64_t sequence_ = 0;
};

}  // namespace ringcoll
