// Executes the calls of a communicator in order: advances their runs, and waits, under deadlines
// and the communicator's poison, for what the oldest wants.
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

/// Where calls come from that are executed without being waited for one by one. Used by the thread
/// that executes.
class CallSource {
 public:
  virtual ~CallSource() = default;
  /// Whether next() would find one. Asked at each poll.
  virtual bool has_next() const = 0;
  /// The next call, which stays until it has ended; null: there is none now.
  virtual const Call* next() = 0;
  /// Reports that the oldest call that was in flight has ended, with this error.
  virtual void ended(std::optional<Error> error) = 0;
  /// True: this thread leaves what is in flight to another. Asked at each poll. `connects`: the
  /// next step opens links, and blocks until they are open or the deadline has passed.
  virtual bool leaves(bool connects) = 0;
};

/// One thread at a time.
class Executor {
 public:
  /// `comm` outlives it.
  explicit Executor(Communicator& comm);
  /// Waits a while for peers that still read this rank's arena.
  ~Executor();

  /// Runs the call to its end: outputs are complete, sends are with the network. Throws Error,
  /// never kInvalidArgument: that is of a call that was refused (check_call). The communicator is
  /// poisoned then.
  void run(const Call& call);
  /// Runs what comes from there, as many at once as there is memory for, until all has ended or
  /// this thread leaves. Then calls may be in flight, and the next run_all(), of a source that has
  /// the same calls, goes on with them. A call that writes what one in flight reads or writes, or
  /// reads what it writes, begins after that has ended. Once the communicator is poisoned, each
  /// run_all() ends one call or what is in flight.
  void run_all(CallSource& calls);
  /// There is a new call in the source: a run_all() that has stopped polling looks at it. Any
  /// thread.
  void look_again() { comm_.channels().wake_if_blocked(); }

 private:
  /// A call in flight.
  struct Flight {
    std::unique_ptr<Run> run;
    bool over = false;
  };

  // No remainder: a division takes as long as most functions of a short call.
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
  std::vector<Flight> flights_;  // a ring: as many as slots, for each takes one
  size_t first_ = 0, in_flight_ = 0;
  const Call* held_ = nullptr;  // from the source, but it has to wait for those in flight
  std::optional<Channels::Patience> patience_;  // of the oldest call, since anything moved
  uint64_t sequence_ = 0;
  CallWatch watch_;
};

}  // namespace ringcoll
