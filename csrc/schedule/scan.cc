// Prefix reductions along the ranks in rank order. In a chain each rank adds its vector to what the
// rank before it has combined; with pieces in flight, all links work at once. By recursive doubling
// each rank adds what the ranks at distances 1, 2, 4 … before it have combined. For an exscan each
// rank first passes its input on to the next, and the ranks from 1 on then scan what they got.
//
// The result of a rank does not depend on the number of ranks after it, not even in its last bit.
//
// Hillis and Steele, "Data parallel algorithms", Commun. ACM 29 (1986); Sanders and Träff,
// "Parallel prefix (scan) algorithms for MPI", EuroPVM/MPI 2006.
#include <algorithm>
#include <iterator>

#include "schedule/families.h"

namespace ringcoll {
namespace {

/// One round: each rank from `first` to `end` - 1 sends to the rank at `distance` after it.
struct Hops {
  Rank first;
  Rank end;
  Rank distance;
  Combine combine = Combine::kReduce;
};
using Rounds = std::vector<Hops>;

/// Ranks from `first` on scan what they hold.
Rounds chain(Rank first, Rank size) {
  Rounds rounds;
  for (Rank rank = first; rank + 1 < size; rank++) rounds.push_back({rank, rank + 1, 1});
  return rounds;
}

Rounds doubling(Rank first, Rank size) {
  Rounds rounds;
  for (Rank distance = 1; first + distance < size; distance *= 2)
    rounds.push_back({first, size - distance, distance});
  return rounds;
}

using Scan = Rounds(Rank first, Rank size);

template <Scan scan>
Rounds inclusive(Rank size) {
  return scan(0, size);
}

template <Scan scan>
Rounds exclusive(Rank size) {
  Rounds rounds;
  if (size > 1) rounds.push_back({0, size - 1, 1, Combine::kCopy});
  std::ranges::copy(scan(1, size), std::back_inserter(rounds));
  return rounds;
}

Rank position_of(const Problem& problem, Rank rank) {
  return problem.positions.empty() ? rank : problem.positions[rank];
}

Rank rank_at(const Problem& problem, Rank position) {
  if (problem.positions.empty()) return position;
  auto found = std::ranges::find(problem.positions, position);
  return static_cast<Rank>(found - problem.positions.begin());
}

template <Rounds rounds_of(Rank size)>
Schedule make(const Problem& problem) {
  Range all = {0, problem.counts[0]};
  Rank rank = rank_at(problem, problem.rank);
  Schedule schedule;
  for (auto [first, end, distance, combine] : rounds_of(problem.size)) {
    Step step;
    if (first <= rank && rank < end) {
      step.send_to = position_of(problem, rank + distance);
      step.send = all;
    }
    if (first <= rank - distance && rank - distance < end) {
      step.recv_from = position_of(problem, rank - distance);
      step.recv = all;
      step.combine = combine;
    }
    add_round(schedule, step);
  }
  return schedule;
}

template <Rounds rounds_of(Rank size)>
std::vector<Traffic> traffic(const Problem& problem) {
  std::vector<Traffic> all;
  for (auto [first, end, distance, combine] : rounds_of(problem.size)) {
    Traffic& round = all.emplace_back();
    for (Rank rank = first; rank < end; rank++)
      round.messages.push_back(
          {position_of(problem, rank), position_of(problem, rank + distance), 1, combine});
  }
  return all;
}

}  // namespace

ScheduleRow scan_chain() {
  return {.collective = RC_SCAN,
          .name = "chain",
          .summary = "each rank adds its vector to what the one before hands it, and passes it on",
          .cost = "steps 1 + ceil((P-2)/P), bytes n",
          .make = make<inclusive<chain>>,
          .traffic = traffic<inclusive<chain>>};
}

ScheduleRow scan_recursive_doubling() {
  return {.collective = RC_SCAN,
          .name = "recursive_doubling",
          .summary = "each rank adds what those at distances 1, 2, 4 ... before it have combined",
          .cost = "steps ceil(lg P), bytes n ceil(lg P)",
          .make = make<inclusive<doubling>>,
          .traffic = traffic<inclusive<doubling>>};
}

ScheduleRow exscan_chain() {
  return {.collective = RC_EXSCAN,
          .name = "chain",
          .summary = "each rank passes its vector to the next, then the others scan by a chain",
          .cost = "steps 1 + ceil((P-2)/P) + ceil((P-3)/P), bytes n + n ceil((P-2)/P)",
          .make = make<exclusive<chain>>,
          .traffic = traffic<exclusive<chain>>};
}

ScheduleRow exscan_recursive_doubling() {
  return {.collective = RC_EXSCAN,
          .name = "recursive_doubling",
          .summary = "each rank passes its vector to the next, then the others scan by doubling",
          .cost = "steps 1 + ceil(lg(P-1)), bytes n + n ceil(lg(P-1))",
          .make = make<exclusive<doubling>>,
          .traffic = traffic<exclusive<doubling>>};
}

}  // namespace ringcoll
