// A schedule is data: the list of steps of one rank. Pure functions without I/O or waiting make it.
//
// Ranks proceed in rounds. What rank a sends to rank b in round i, b receives in its own round i.
// All ranks of a call have the same number of rounds; a rank with nothing to do in a round has an
// idle step. Message order and freedom from deadlock follow from this rule, which
// schedule_test.cc proves for every row and size.
//
// A schedule works on an index space of elements, laid out as the table below says. Its ranks are
// positions in ring order. coll/run.h translates them, and lays out the caller's chunks in that
// order.
//
//   allreduce, broadcast, reduce,
//   scan, exscan                     one vector of counts[0] elements
//   allgather, gather                chunk i, of counts[i] elements, comes from rank i
//   reduce_scatter, scatter          chunk i, of counts[i] elements, goes to rank i
//   alltoall                         counts[i] elements for each rank i, then recv_counts[i] from i
//   barrier                          empty; its steps carry messages of no bytes
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace ringcoll {

/// What happens to a received range. kCopy: it replaces what the rank holds. kReduce: the two are
/// combined, with the lower rank's operand on the left. kFold: the two are combined, with what the
/// rank holds on the left, whoever sent the other. Sums in rank order use kFold.
enum class Combine : uint8_t { kCopy, kReduce, kFold };

/// Sends `send` to `send_to` and receives `recv` from `recv_from` in one round. Either peer may be
/// kNobody. If both peers are the rank itself, the step is a copy inside the rank (alltoall's own
/// block). With kFold, such a step combines the rank's input into what it holds of that range. An
/// empty range sends no message, except in a barrier.
struct Step {
  Rank send_to = kNobody;
  Range send;
  Rank recv_from = kNobody;
  Range recv;
  Combine combine = Combine::kCopy;
  bool sends_input = false;  // sends the rank's input, not the combined value
};
using Schedule = std::vector<Step>;

/// The groups of one level of a cluster, such as hosts, leaves or spines. Ranks are positions in
/// ring order, and every group is a contiguous range of them.
class Groups {
 public:
  /// `firsts` are the first ranks of the groups, in rising order from 0.
  Groups(std::vector<Rank> firsts, Rank ranks);

  Rank count() const { return static_cast<Rank>(firsts_.size()) - 1; }
  Rank first(Rank group) const { return firsts_[group]; }
  Rank end(Rank group) const { return firsts_[group + 1]; }
  Rank size_of(Rank group) const { return firsts_[group + 1] - firsts_[group]; }
  Rank of(Rank rank) const { return group_of_[rank]; }
  bool operator==(const Groups&) const = default;

 private:
  std::vector<Rank> firsts_;  // of each group, then the number of ranks
  std::vector<Rank> group_of_;
};

/// The arguments of one rank's schedule.
struct Problem {
  Rank rank = 0;
  Rank size = 1;
  /// Valid only in broadcast, reduce, gather and scatter. In other collectives the value means
  /// nothing, and a schedule must not read it.
  Rank root = 0;
  std::span<const int64_t> counts;       // see the table above
  std::span<const int64_t> recv_counts;  // alltoall only
  /// The first level is hosts, or the sockets of a single host. Each level consists of groups of
  /// the level before, and the last level has one group of all ranks. Empty if nothing is known:
  /// all ranks then count as one host.
  std::span<const Groups> levels;
  /// The position of each rank of the communicator, by rank. Only scan and exscan depend on it:
  /// other results are the same for all ranks, or move with the caller's chunks. Empty: each rank
  /// is at its own number.
  std::span<const Rank> positions;
};

/// A message from one rank to another. `share` is its part of the whole vector.
struct Message {
  Rank from = 0;
  Rank to = 0;
  double share = 0;
  Combine combine = Combine::kCopy;
};
/// The messages of all ranks in one round, which is repeated `times` times.
struct Traffic {
  std::vector<Message> messages;
  int64_t times = 1;
};

/// On which clusters a row is offered.
enum class Where : uint8_t {
  kAnywhere,
  kOneDomain,  // all ranks must map one another's memory
  kHosts,      // several hosts, or sockets of one host; one of them has several ranks
};

/// "any", "one domain", "hosts", as in docs/algorithms.md.
std::string_view name_of(Where where);

/// One row of the registry. docs/contributing.md shows how to add one.
struct ScheduleRow {
  Collective collective;
  std::string_view name;     // "ring", "direct/ring": within hosts / between hosts
  std::string_view summary;  // one line
  /// For example "steps 2(P-1), bytes 2n(P-1)/P". The costs are those of the rank that pays most,
  /// for P ranks on H hosts of R ranks each. n is the size of the whole vector in bytes.
  std::string_view cost;
  Schedule (*make)(const Problem&);
  /// The messages of all ranks for equal counts, computed without each rank's schedule;
  /// `counts` are not read. If this is null, or returns nothing for these levels, traffic_of()
  /// counts the messages instead.
  std::vector<Traffic> (*traffic)(const Problem&) = nullptr;
  Where where = Where::kAnywhere;
  /// Alltoall only: the row needs equal counts on all ranks, and all ranks must know that.
  bool equal_counts = false;
  /// The row runs only where RINGCOLL_ALGORITHM names it, whatever its price.
  bool by_name_only = false;
};

std::span<const ScheduleRow> schedules();
/// Null if there is no such row.
const ScheduleRow* find_schedule(Collective collective, std::string_view name);

/// `first`, then `second`. An allreduce by ring is a reduce-scatter, then an allgather.
Schedule compose(Schedule first, Schedule second);

/// Splits `count` elements into `parts` chunks whose sizes differ by at most one. No chunk is
/// larger than the first. A boundary depends only on the fraction i / parts: two of four chunks
/// cover the same elements as one of two.
std::vector<int64_t> even_counts(int64_t count, Rank parts);
/// The first element of chunk i of that split: count * i / parts, rounded up.
inline int64_t even_start(int64_t count, Rank parts, int64_t i) {
  int64_t each = count / parts, rest = count % parts;
  return each * i + (rest * i + parts - 1) / parts;
}
/// Offsets of consecutive chunks of these counts. There is one more entry than counts; the last
/// entry is the sum.
std::vector<int64_t> offsets_of(std::span<const int64_t> counts);
/// How many messages to one peer may leave before their rounds. The peer has room for them.
inline constexpr int kMostAhead = 2;
/// For each step, the earliest round in which its send may leave, at most its own round. A send may
/// leave early when all that it sends was received in earlier rounds. It overtakes no earlier send
/// to the same peer, and at most kMostAhead sends to a peer leave early. Steps that send nothing
/// have their own round.
std::vector<size_t> earliest_sends(const Schedule& schedule, Rank rank);
/// The number of elements in the index space of a call.
int64_t space_of(Collective collective, const Problem& problem);

/// The messages of all ranks by round, counted by making every rank's schedule. Counts are equal
/// and long enough that no chunk is empty; problem.rank and problem.counts are not read. With
/// `one_domain`, each message counts in the earliest round in which it may leave.
/// Empty if all ranks together have more than `most_steps` steps; then only one schedule was made.
std::vector<Traffic> traffic_of(const ScheduleRow& row, const Problem& problem,
                                int64_t most_steps = std::numeric_limits<int64_t>::max(),
                                bool one_domain = false);

}  // namespace ringcoll
