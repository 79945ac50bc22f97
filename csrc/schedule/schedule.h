// A schedule is data: the list of steps of one rank. Pure functions, no I/O, no waiting, no memory.
//
// Ranks run in rounds: what rank a sends to b in round i, b receives in its own round i, and a rank
// that has nothing to do in a round has an idle step. All schedules of one call have the same
// number of rounds on every rank. The executor derives message order and freedom from deadlock from
// this rule; schedule_test.cc proves it for every row and size.
//
// A schedule works on an index space of elements laid out as the collective's row below says. Ranks
// are positions in ring order: the executor translates them, and lays the caller's chunks out in
// that order.
//
//   allreduce, broadcast, reduce     one vector of counts[0] elements
//   allgather, gather                chunk i, of counts[i] elements, comes from rank i
//   reduce_scatter, scatter          chunk i, of counts[i] elements, goes to rank i
//   alltoall                         counts[i] elements for each rank i, then recv_counts[i] from
//   each rank i barrier                          empty; its steps carry messages of no bytes
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace ringcoll {

enum class Combine : uint8_t { kCopy, kReduce };

/// Sends `send` to `send_to` and receives `recv` from `recv_from`, at the same time; either may be
/// kNobody. What is received replaces (kCopy) or is combined with (kReduce) what the rank holds of
/// that range. send_to == recv_from == the rank itself is a copy inside the rank (alltoall's own
/// block). Ranges of no elements send no message, except in a barrier.
struct Step {
  Rank send_to = kNobody;
  Range send;
  Rank recv_from = kNobody;
  Range recv;
  Combine combine = Combine::kCopy;
};
using Schedule = std::vector<Step>;

/// What a schedule is made for.
struct Problem {
  Rank rank = 0;
  Rank size = 1;
  Rank root = 0;
  std::span<const int64_t> counts;       // see the table above
  std::span<const int64_t> recv_counts;  // alltoall only
};

/// The price of a schedule, each part for the rank that pays most of it: rounds that carry a
/// message, elements that it sends, and elements that it combines (alpha, beta and gamma of the
/// usual model: Thakur, Rabenseifner and Gropp 2005).
struct Cost {
  int64_t steps = 0;
  int64_t elements = 0;
  int64_t combined = 0;
};

/// One row of the registry. A new schedule is one file and one row.
struct ScheduleRow {
  Collective collective;
  std::string_view name;     // "ring"
  std::string_view summary;  // one line
  std::string_view cost;     // "steps 2(P-1), bytes 2n(P-1)/P"; n = bytes of the whole vector
  Schedule (*make)(const Problem&);
  Cost (*price)(const Problem&);
  /// Every rank must reach every other directly at low latency (shared memory): not offered across
  /// hosts.
  bool domain_only = false;
};

std::span<const ScheduleRow> schedules();
/// The row, or null.
const ScheduleRow* find_schedule(Collective collective, std::string_view name);

/// `first`, then `second`: allreduce_ring = compose(reduce_scatter_ring, allgather_ring).
Schedule compose(Schedule first, Schedule second);

/// The split of `count` elements into `parts` chunks whose sizes differ by at most one, larger ones
/// first.
std::vector<int64_t> even_counts(int64_t count, Rank parts);
/// Offsets of chunks of these counts, one after another; one more entry than counts, the last is
/// the sum.
std::vector<int64_t> offsets_of(std::span<const int64_t> counts);
/// Elements of the index space of a call.
int64_t space_of(Collective collective, const Problem& problem);

}  // namespace ringcoll
