// Executes the calls of a communicator in order. It advances their runs, and waits for what the
// oldest run wants, until a deadline or until the communicator is poisoned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "coll/call.h"
#include "coll/call_watch.h"
#include "coll/lending.h"
#include "coll/plan_cache.h"
#include "coll/run.h"
#include "coll/slots.h"
#include "comm/communicator.h"

namespace ringcoll {

/// A queue of calls that are executed together, without a wait for each. Only the thread that
/// executes calls uses it.
class CallSource {
 public:
  virtual ~CallSource() = default;
  /// Whether next() would return a call. Called at each poll.
  virtual bool has_next() const = 0;
  /// Returns the next call, which stays valid until ended() reports its end. Null: there is none
  /// now.
  virtual const Call* next() = 0;
  /// Reports that the oldest call in flight has ended, with this error if it failed.
  virtual void ended(std::optional<Error> error) = 0;
  /// True if this thread should leave the calls in flight to another thread. Called at each poll.
  /// `connects`: the next step opens links, and blocks until they are open or the deadline has
  /// passed.
  virtual bool leaves(bool connects) = 0;
};

/// One thread at a time.
class Executor {
 public:
  /// `comm` outlives this object.
  explicit Executor(Communicator& comm);
  /// Waits up to 5 s for peers that still read this rank's arena.
  ~Executor();

  /// Runs the call to its end: outputs are complete, and sends are with the network. Throws Error,
  /// after which the communicator is poisoned. The code is never kInvalidArgument, which means that
  /// check_call() refused a call.
  void run(const Call& call);
  /// Runs the calls of the source, as many at once as there is memory for. Returns when all have
  /// ended or this thread leaves. Calls may then be in flight; the next run_all() continues them,
  /// with a source of the same calls. A call begins after the end of earlier calls with which it
  /// shares memory that one of them writes. Once the communicator is poisoned, each run_all() fails
  /// the calls in flight, or else one call.
  void run_all(CallSource& calls);
  /// Reports a new call in the source, so that a run_all() that has stopped polling looks for it.
  /// Any thread.
  void look_again() { comm_.channels().wake_if_blocked(); }

 private:
  /// A call in flight.
  struct Flight {
    std::unique_ptr<Run> run;
    bool over = false;
  };

  // Avoids the operator %: a division takes as long as most functions of a short call.
  Flight& flight(size_t i) {
    size_t at = first_ + i;
    return flights_[at < flights_.size() ? at : at - flights_.size()];
  }
  Flight& make_flight();
  void begin(Flight& flight, const Call& call);
  void set_deadline(const Call& call);
  void wait_for(const Want& want);
  void connect(Planned& planned);
  Error fail(const std::exception& error);

  bool has_room();
  bool may_follow(const Call& call);
  void park_memory();
  void begin_those_of(CallSource& calls);
  bool advance_all();
  size_t left() const { return in_flight_ + (held_ ? 1 : 0); }
  void end_oldest(CallSource& calls);
  bool end_those_over(CallSource& calls);
  bool wait_for_any(CallSource& calls);
  void fail_all(CallSource& calls, const std::exception& error);

  Communicator& comm_;
  const Borrowers borrowers_;
  PlanCache plans_;
  Slots slots_;
  CopyWays ways_;
  std::vector<Flight> flights_;  // a circular buffer with as many entries as there are slots
  size_t first_ = 0, in_flight_ = 0;
  const Call* held_ = nullptr;  // taken from the source; it waits for calls in flight
  std::optional<Channels::Patience> patience_;  // of the oldest call's current wait
  uint64_t sequence_ = 0;
  CallWatch watch_;
};

}  // namespace ringcoll
