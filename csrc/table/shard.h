// One shard of a table: rows, clocks, and what has been pushed, as a state machine.
//
// It knows no network, threads or time: a server drives it, and keeps what has to wait. A replica
// that is driven by the same operations in the same order has the same bits, whatever its
// processor. All operations but the const ones belong to that order. One that throws has changed
// nothing.
//
// A shard moves to another server as a whole, by a snapshot, and so does everything that it knows
// of its clients and workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "rules/custom_rule.h"
#include "table/clocks.h"
#include "table/rows.h"
#include "table/snapshot.h"
#include "table/spec.h"

namespace ringcoll {

/// Rows of a push, and their values, one after another. Rows that occur more than once are combined
/// as those of several workers are (Shard).
struct PushedRows {
  std::span<const int64_t> ids;
  DataType dtype = RC_FLOAT32;
  std::span<const std::byte> values;
  double weight = 1;
};

enum class PushOutcome : uint8_t {
  kApplied,
  kWaits,     // it is kept, and will be applied when its clock is complete
  kLate,      // not applied, since its clock was complete without its worker
  kRepeated,  // the shard had it already, and it was not applied again
};

/// A custom rule has thrown at a push, which has changed no row, though perhaps what the rule keeps
/// itself. So replicas must be driven by this push, too.
class RuleFailed : public Error {
 public:
  explicit RuleFailed(const Error& error) : Error(error) {}
};

/// With a staleness of 0, the pushes of a clock wait until it is complete. They are then applied as
/// one, in the order of workers, and a worker's in the order of pushes: the pushes to a row are
/// combined as the rule says (Rule::combine()). That equals an allreduce and one step. Otherwise a
/// push is applied when it comes.
///
/// A custom rule that throws at the end of a clock leaves the row as it is. This is logged once and
/// counted; other rows are updated.
class Shard {
 public:
  /// `range` says which rows a dense shard has (range_of()), and means nothing for a sparse one.
  /// Values of rows lie in `memory`, which outlives the shard. Throws Error(kInvalidArgument) if
  /// the table does not have these rows, Error(kRefused) if memory is lacking.
  Shard(const TableSpec& spec, Range range, std::pmr::memory_resource* memory);
  /// A shard that equals the one of which the snapshot is, but for the places of rows. It takes the
  /// rule's parameters from the snapshot, and copies all values. Throws also
  /// Error(kInvalidArgument) if no shard of this table and range can be such.
  Shard(const TableSpec& spec, Range range, std::pmr::memory_resource* memory,
        const Snapshot& from);

  /// Of one client the numbers of pushes ascend, though not by one, since other pushes go to other
  /// shards. With a staleness of 0, the client is a worker, and at this clock; otherwise the clock
  /// means nothing. NaN are passed on, and counted. Throws Error(kInvalidArgument) for rows that a
  /// dense shard does not have, another number of values, a type or weight that the rule does not
  /// take, another type than that of pushes that wait for the same clock, and clocks that are not
  /// the worker's; Error(kRefused) if memory is lacking. A sparse shard takes any id: the caller
  /// sees to it that the id belongs there (shard_of()).
  PushOutcome push(int64_t client, int64_t number, int64_t clock, const PushedRows& rows);

  /// Copies rows to `out`, one after another. A row that is not there has the values with which it
  /// would begin; it is not made. A reader that is no worker names no clock. Returns nothing, or,
  /// if the worker has to wait, the clock that must be complete first; `out` is then unchanged.
  /// Throws Error(kInvalidArgument) as push() does.
  [[nodiscard]] std::optional<int64_t> pull(std::optional<int64_t> clock,
                                            std::span<const int64_t> ids,
                                            std::span<std::byte> out) const;
  /// Sets the values of rows at once, past rule and clocks. What the rule keeps of rows stays as it
  /// is. Rows of a sparse table are made if need be, and of rows that occur more than once the last
  /// one is taken. Numbers, types and errors are those of push().
  PushOutcome assign(int64_t client, int64_t number, const PushedRows& pushed);

  // ---- clocks. Each of these may complete clocks: the server then looks at pulls that wait.

  /// The client becomes a worker, at the current clock or at `clock` if that is later. One that is
  /// there goes on to `clock`, if it is not that far.
  void join(int64_t worker, int64_t clock = 0);
  /// What it has pushed to clocks that it has not finished is dropped, and it no longer counts.
  void leave(int64_t worker);
  /// The worker finishes a clock.
  void tick(int64_t worker, int64_t clock);
  /// The time of grace for this clock has passed.
  void end_grace(int64_t clock);
  /// The first clock that is not complete.
  int64_t current_clock() const { return clocks_.current(); }
  const Clocks& clocks() const { return clocks_; }

  /// Another learning rate, for example, or another rule. Values stay. What the rule keeps of rows
  /// stays if it is the same rule with as many arrays of state; otherwise it becomes that of new
  /// rows. A custom rule is made anew. Nothing happens if the rule is equal. Pushes that wait are
  /// applied by the new rule, with weight 1 if that takes none. Throws Error(kInvalidArgument) if
  /// the table's type is none of the rule or a custom rule cannot be made, Error(kRefused) if
  /// memory is lacking. Numbers are those of push().
  PushOutcome set_rule(int64_t client, int64_t number, const Rule& rule);
  const TableSpec& spec() const { return spec_; }
  /// Forgets the numbers of a client that will send nothing more.
  void forget(int64_t client);

  // ---- the whole

  /// It points into the shard, and must not be used after a change of it. Throws Error(kRefused) if
  /// memory is lacking.
  Snapshot snapshot() const;
  /// Equal for shards that are equal, wherever their rows lie; counters do not belong to it.
  uint64_t digest() const;
  TableCounters counters() const;
  size_t row_count() const { return rows_.size(); }
  /// Where the values of a row lie, for as long as it is there; null if it is not.
  const std::byte* find(int64_t id) const;

 private:
  /// One row of a push.
  struct Contribution {
    int64_t id;
    const std::byte* values;
    DataType dtype;
    double weight;
  };
  using Contributions = std::vector<Contribution>;
  /// A push that waits, with the memory of its values.
  struct KeptPush : WaitingPush {
    std::unique_ptr<std::byte[]> memory;
  };

  void check_ids(std::span<const int64_t> ids) const;
  /// `bytes` are those of the rows in this type.
  void check_bytes(std::span<const int64_t> ids, DataType dtype, size_t bytes) const;
  void check_clock(int64_t worker, int64_t clock, DataType dtype) const;
  bool is_synchronous() const { return spec_.staleness == 0; }

  void check_rows(const PushedRows& pushed, const Rule& rule) const;
  bool has_done(int64_t client, int64_t number) const;
  /// Does `change`, which returns a PushOutcome, and remembers the number.
  template <typename Change>
  PushOutcome once(int64_t client, int64_t number, Change&& change);
  void count_nans(const PushedRows& pushed);
  PushOutcome accept(int64_t client, int64_t clock, const PushedRows& pushed);
  void keep(int64_t worker, int64_t clock, const PushedRows& pushed);
  void add_rows(Contributions& all, const PushedRows& rows) const;
  /// Sorts the contributions of each step by row, and provides the memory for apply(), which throws
  /// nothing.
  void prepare(std::span<Contributions> steps);
  /// A custom rule's error is returned; `skips` says whether other rows are updated then.
  std::optional<RuleFailed> apply(const Contributions& step, bool skips);
  void apply_row(std::span<const Contribution> of_row);
  std::optional<RuleFailed> apply_custom(const Contributions& step, bool skips);
  /// What a custom rule makes of a row, written to `to`.
  std::optional<RuleFailed> compute(std::span<const Contribution> of_row, std::byte* to);
  /// The contributions to a row as one.
  Contribution combined(std::span<const Contribution> of_row);
  void log_failure(const RuleFailed& failure);
  /// True unless its worker has not finished its clock, or left before it had.
  bool counts(const WaitingPush& push, const Clocks& after) const;
  /// Makes these the clocks, and completes those that can be.
  void advance(Clocks after);

  void check_snapshot(const Snapshot& from, Range range) const;
  void check_row(const SnapshotRow& row, int64_t uses) const;
  void check_waiting(const Snapshot& from) const;
  void restore(const Snapshot& from);

  TableSpec spec_;
  Clocks clocks_;
  Rows rows_;
  std::vector<KeptPush> waiting_;  // of workers in ascending order, and each one's in its order
  std::map<int64_t, int64_t> numbers_;  // client -> the number of its last push
  TableCounters counters_;
  std::vector<std::byte> sum_;              // of the contributions to one row
  std::unique_ptr<CustomRule> custom_;      // if the rule is such
  std::vector<std::byte> computed_;         // rows that the custom rule has made in a step
  std::vector<const std::byte*> outcomes_;  // places in computed_, of each row; null: it has thrown
  bool failure_was_logged_ = false;
};

}  // namespace ringcoll
