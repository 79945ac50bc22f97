// Chain: each rank passes the vector on to the next one. With pieces in flight, all links work at
// once and each carries the vector once. No broadcast or reduce of long vectors sends less.
//
// Pjesivac-Grbovic et al., "Performance analysis of MPI collective operations", Cluster Comput. 10
// (2007), "chain" / "pipeline".
#include "schedule/families.h"

namespace ringcoll {
namespace {

Schedule make_chain_broadcast(const Problem& problem) {
  return chain_broadcast(Circle(problem, problem.root), {0, problem.counts[0]});
}

std::vector<Traffic> broadcast_traffic(const Problem& problem) {
  Circle circle(problem, problem.root);
  std::vector<Traffic> rounds;
  for (Rank p = 0; p + 1 < circle.size; p++)
    rounds.push_back({{{circle.rank_at(p), circle.rank_at(p + 1), 1}}});
  return rounds;
}

}  // namespace

// rounds P-1, bytes n
Schedule chain_broadcast(const Circle& circle, Range range) {
  Schedule schedule;
  for (Rank round = 0; round + 1 < circle.size; round++) {
    Step step;
    if (circle.position == round)
      step = {circle.rank_at(round + 1), range, kNobody, {}, Combine::kCopy};
    if (circle.position == round + 1)
      step = {kNobody, {}, circle.rank_at(round), range, Combine::kCopy};
    add_round(schedule, step);
  }
  return schedule;
}

ScheduleRow broadcast_chain() {
  return {.collective = RC_BROADCAST,
          .name = "chain",
          .summary = "each rank passes the vector on to the next",
          .cost = "steps 1 + ceil((P-2)/P), bytes n",
          .make = make_chain_broadcast,
          .traffic = broadcast_traffic};
}

ScheduleRow reduce_chain() {
  return {.collective = RC_REDUCE,
          .name = "chain",
          .summary = "each rank adds its vector to what the next hands it, and passes it on",
          .cost = "steps 1 + ceil((P-2)/P), bytes n",
          .make = [](const Problem& problem) { return transposed(make_chain_broadcast(problem)); },
          .traffic = [](const Problem& problem) { return transposed(broadcast_traffic(problem)); }};
}

}  // namespace ringcoll
