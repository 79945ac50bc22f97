// Broadcast and reduce of long vectors in two phases. No rank sends more than two whole vectors,
// however many ranks there are.
//
// Broadcast: van de Geijn, "On global combine operations", J. Parallel Distrib. Comput. 22 (1994);
// Barnett et al., "Interprocessor collective communication library (InterCom)", SHPCC 1994.
// Reduce: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
#include <algorithm>

#include "schedule/families.h"

namespace ringcoll {
namespace {

/// The ring allgather, without the chunks that a receiver already has from the scatter (those of
/// its subtree).
Schedule remaining_allgather(const Circle& circle, const Chunks& chunks) {
  Schedule schedule = ring_allgather(circle, chunks);
  auto has = [&](Rank position, Range chunk) {
    Range subtree = chunks.between(position, subtree_end(position, circle.size));
    return chunk.first >= subtree.first && chunk.end() <= subtree.end();
  };
  Rank next = (circle.position + 1) % circle.size;
  for (Step& step : schedule) {
    if (has(next, step.send)) step.send_to = kNobody, step.send = {};
    if (has(circle.position, step.recv)) step.recv_from = kNobody, step.recv = {};
  }
  return schedule;
}

// steps ceil(lg P) + P-1, bytes 2n(P-1)/P
Schedule scatter_allgather_broadcast(const Problem& problem) {
  Circle circle(problem, problem.root);
  Chunks chunks = even_chunks(problem);
  return compose(binomial_scatter(circle, chunks), remaining_allgather(circle, chunks));
}

// steps 2(P-1), bytes n
Schedule reduce_scatter_gather_reduce(const Problem& problem) {
  Circle circle(problem, problem.root);
  Chunks chunks = even_chunks(problem);
  return compose(ring_reduce_scatter(circle, chunks), linear_gather(circle, chunks));
}

std::vector<Traffic> reduce_traffic(const Problem& problem) {
  Circle circle(problem, problem.root);
  double share = 1.0 / problem.size;
  std::vector<Traffic> rounds = linear_gather_traffic(circle, share);
  add_ring(rounds.emplace_back(Traffic{{}, circle.size - 1}), circle, share, Combine::kReduce);
  return rounds;
}

}  // namespace

ScheduleRow broadcast_scatter_allgather() {
  return {.collective = RC_BROADCAST,
          .name = "scatter_allgather",
          .summary = "chunks down a binomial tree, then round a ring",
          .cost = "steps ceil(lg P) + P-1, bytes 2n(P-1)/P",
          .make = scatter_allgather_broadcast};
}

ScheduleRow reduce_scatter_gather() {
  return {.collective = RC_REDUCE,
          .name = "scatter_gather",
          .summary = "reduce-scatter round a ring, then every chunk to the root",
          .cost = "steps 2(P-1), bytes n",
          .make = reduce_scatter_gather_reduce,
          .traffic = reduce_traffic};
}

}  // namespace ringcoll
