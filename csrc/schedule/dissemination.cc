// Dissemination: in round k a rank tells the one 2^k after it what it knows. After ceil(lg P)
// rounds each has heard of all, for any number of ranks.
//
// Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", Int. J. Parallel
// Program. 17 (1988).
#include "schedule/families.h"

namespace ringcoll {
namespace {

// steps ceil(lg P), bytes 0
Schedule make_barrier(const Problem& problem) {
  Circle circle(problem);
  Schedule schedule;
  for (Rank distance = 1; distance < circle.size; distance *= 2)
    schedule.push_back({circle.rank_at(circle.position + distance),
                        {},
                        circle.rank_at(circle.position - distance),
                        {},
                        Combine::kCopy});
  return schedule;
}

}  // namespace

ScheduleRow barrier_dissemination() {
  return {.collective = RC_BARRIER,
          .name = "dissemination",
          .summary = "empty messages to the ranks 1, 2, 4 ... after",
          .cost = "steps ceil(lg P), bytes 0",
          .make = make_barrier,
          .price = [](const Problem& problem) { return Cost{ceil_log2(problem.size), 0}; }};
}

}  // namespace ringcoll
