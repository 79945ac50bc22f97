// Dissemination: in round k, a rank notifies the rank 2^k after it. After ceil(lg P) rounds each
// rank has heard from all, directly or not, for any number of ranks.
//
// Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", Int. J. Parallel
// Program. 17 (1988).
#include <algorithm>

#include "schedule/families.h"
#include "schedule/lanes.h"

namespace ringcoll {
namespace {

// steps ceil(lg P), bytes 0
Schedule dissemination(const Circle& circle) {
  Schedule schedule;
  for (Rank distance = 1; distance < circle.size; distance *= 2)
    schedule.push_back({circle.rank_at(circle.position + distance),
                        {},
                        circle.rank_at(circle.position - distance),
                        {},
                        Combine::kCopy});
  return schedule;
}

// steps 2ceil(lg R) + ceil(lg H), bytes 0
Schedule make_over_hosts(const Problem& problem) {
  Groups one_host({0}, problem.size);
  const Groups& hosts = problem.levels.empty() ? one_host : problem.levels.front();
  std::vector<Rank> leaders;
  Rank largest = 1;
  for (Rank h = 0; h < hosts.count(); h++) {
    leaders.push_back(hosts.first(h));
    largest = std::max(largest, hosts.size_of(h));
  }
  Rank host = hosts.of(problem.rank), leader = leaders[host];
  // The messages are those of a broadcast, but empty.
  Schedule down = binomial_broadcast(host_circle(hosts, problem.rank, leader), {0, 1});
  for (Step& step : down) step.send = step.recv = {};
  down.resize(static_cast<size_t>(ceil_log2(largest)));
  Schedule across = dissemination(Circle(host, leaders));
  if (problem.rank != leader) across.assign(across.size(), {});
  return compose(compose(backwards(down), std::move(across)), down);
}

}  // namespace

ScheduleRow barrier_dissemination() {
  return {.collective = RC_BARRIER,
          .name = "dissemination",
          .summary = "empty messages to the ranks 1, 2, 4 ... after this one",
          .cost = "steps ceil(lg P), bytes 0",
          .make = [](const Problem& problem) { return dissemination(Circle(problem)); }};
}

ScheduleRow barrier_binomial_dissemination() {
  return {.collective = RC_BARRIER,
          .name = "binomial/dissemination",
          .summary = "up a tree in each host, among one rank of each, down again",
          .cost = "steps 2ceil(lg R)+ceil(lg H), bytes 0",
          .make = make_over_hosts,
          .where = Where::kHosts};
}

}  // namespace ringcoll
