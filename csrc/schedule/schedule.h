// A schedule is data: the list of steps of one rank. Pure functions, no I/O, no waiting, no memory.
//
// Ranks run in rounds: what rank a sends to b in round i, b receives in its own round i, and a rank
// that has nothing to do in a round has an idle step. All schedules of one call have the same
// number of rounds on every rank. What runs them derives message order and freedom from deadlock
// from this rule; schedule_test.cc proves it for every row and size.
//
// A schedule works on an index space of elements laid out as the collective's row below says. Ranks
// are positions in ring order: coll/run.h translates them, and lays the caller's chunks out in
// that order.
//
//   allreduce, broadcast, reduce     one vector of counts[0] elements
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

/// What becomes of what is received: it replaces what the rank holds (kCopy), or is combined with
/// it, the operand of the lower rank on the left (kReduce), or what the rank holds on the left,
/// whoever sent the other (kFold): of sums that are made in the order of the ranks.
enum class Combine : uint8_t { kCopy, kReduce, kFold };

/// Sends `send` to `send_to` and receives `recv` from `recv_from`, at the same time; either may be
/// kNobody. send_to == recv_from == the rank itself is a step inside the rank: a copy (alltoall's
/// own block), or, with kFold, its own input joins what it holds of that range. Ranges of no
/// elements send no message, except in a barrier.
struct Step {
  Rank send_to = kNobody;
  Range send;
  Rank recv_from = kNobody;
  Range recv;
  Combine combine = Combine::kCopy;
  bool sends_input = false;  // and not what it has made of that by receiving
};
using Schedule = std::vector<Step>;

/// The groups of one level of a cluster: hosts, leaves, spines. Ranks are positions of the ring, in
/// which every group is a run.
class Groups {
 public:
  /// The first rank of each group, rising from 0.
  Groups(std::vector<Rank> firsts, Rank ranks);

  Rank count() const { return static_cast<Rank>(firsts_.size()) - 1; }
  Rank first(Rank group) const { return firsts_[group]; }
  Rank end(Rank group) const { return firsts_[group + 1]; }
  Rank size_of(Rank group) const { return firsts_[group + 1] - firsts_[group]; }
  Rank of(Rank rank) const { return group_of_[rank]; }
  bool operator==(const Groups&) const = default;

 private:
  std::vector<Rank> firsts_;  // and the number of ranks
  std::vector<Rank> group_of_;
};

/// What a schedule is made for.
struct Problem {
  Rank rank = 0;
  Rank size = 1;
  /// Of broadcast, reduce, gather and scatter, and for them alone: in the other collectives some
  /// rank stands here that means nothing, and a schedule must not look at it.
  Rank root = 0;
  std::span<const int64_t> counts;       // see the table above
  std::span<const int64_t> recv_counts;  // alltoall only
  /// Hosts first (of one host: its sockets), each level made up of groups of the one before; the
  /// last is one group of all ranks. Empty: nothing is known, and all ranks are one host.
  std::span<const Groups> levels;
};

/// What is sent in a round, by all ranks: `share` of the vector from one to another.
struct Message {
  Rank from = 0;
  Rank to = 0;
  double share = 0;
  Combine combine = Combine::kCopy;
};
/// `times` rounds with the same messages.
struct Traffic {
  std::vector<Message> messages;
  int64_t times = 1;
};

/// Where a row is offered.
enum class Where : uint8_t {
  kAnywhere,
  kOneDomain,  // every rank must reach every other directly at low latency (shared memory)
  kHosts,      // more than one host, or socket of one, of which one has more than one rank
};

/// "any", "one domain", "hosts", as in docs/algorithms.md.
std::string_view name_of(Where where);

/// One row of the registry. docs/contributing.md shows how to add one.
struct ScheduleRow {
  Collective collective;
  std::string_view name;     // "ring", "direct/ring": within hosts / between them
  std::string_view summary;  // one line
  /// "steps 2(P-1), bytes 2n(P-1)/P", for the rank that pays most, with P ranks on H hosts of R
  /// each; n = bytes of the whole vector.
  std::string_view cost;
  Schedule (*make)(const Problem&);
  /// What all ranks send if counts are equal, without making the schedule of every rank; `counts`
  /// are not looked at. Null, or nothing for these levels: nobody has worked it out, and it is
  /// counted by traffic_of(), by which the row has its price all the same.
  std::vector<Traffic> (*traffic)(const Problem&) = nullptr;
  Where where = Where::kAnywhere;
  /// Of alltoall: only where every rank sends as much to each as any other does, and all know it.
  bool equal_counts = false;
};

std::span<const ScheduleRow> schedules();
/// The row, or null.
const ScheduleRow* find_schedule(Collective collective, std::string_view name);

/// `first`, then `second`: allreduce_ring = compose(reduce_scatter_ring, allgather_ring).
Schedule compose(Schedule first, Schedule second);

/// The split of `count` elements into `parts` chunks whose sizes differ by at most one; none is
/// larger than the first. Equal parts of one range end at the same element, whatever the number of
/// chunks: two of four are one of two.
std::vector<int64_t> even_counts(int64_t count, Rank parts);
/// Where its i-th chunk begins: count * i / parts, rounded up.
inline int64_t even_start(int64_t count, Rank parts, int64_t i) {
  int64_t each = count / parts, rest = count % parts;
  return each * i + (rest * i + parts - 1) / parts;
}
/// Offsets of chunks of these counts, one after another; one more entry than counts, the last is
/// the sum.
std::vector<int64_t> offsets_of(std::span<const int64_t> counts);
/// How many messages to one peer may go before their rounds: they have room with the peer.
inline constexpr int kMostAhead = 2;
/// Of each step the round in which its send may go at the earliest, its own at the latest: when all
/// that it sends has been received in rounds before, and what is sent to its peer before it goes no
/// later. Of a step that sends nothing its own.
std::vector<size_t> earliest_sends(const Schedule& schedule, Rank rank);
/// Elements of the index space of a call.
int64_t space_of(Collective collective, const Problem& problem);

/// What all ranks send, round by round, counted by making the schedule of each. With equal counts
/// that are long enough for every message to be sent, and a problem whose rank does not matter.
/// `one_domain`: each message is of the round in which it may go at the earliest.
/// Empty, after the schedule of one rank, if all have more than `most_steps` in all.
std::vector<Traffic> traffic_of(const ScheduleRow& row, const Problem& problem,
                                int64_t most_steps = std::numeric_limits<int64_t>::max(),
                                bool one_domain = false);

}  // namespace ringcoll
