// Ring: in each round every rank sends one chunk to the next rank and receives one from the rank
// before. It sends the fewest bytes, and suits networks where neighbours in ring order are near.
//
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
// J. Parallel Distrib. Comput. 69 (2009).
#include "schedule/families.h"

namespace ringcoll {

void add_ring(Traffic& traffic, const Circle& circle, double share, Combine combine) {
  for (Rank p = 0; p < circle.size && circle.size > 1; p++)
    traffic.messages.push_back({circle.rank_at(p), circle.rank_at(p + 1), share, combine});
}

namespace {

/// The rounds of a ring of all ranks: those of a reduce-scatter, of an allgather, or of both.
template <bool reduces, bool gathers>
std::vector<Traffic> ring_traffic(const Problem& problem) {
  Circle circle(problem);
  std::vector<Traffic> phases;
  for (Combine combine : {Combine::kReduce, Combine::kCopy}) {
    if (combine == Combine::kReduce ? !reduces : !gathers) continue;
    add_ring(phases.emplace_back(Traffic{{}, circle.size - 1}), circle, 1.0 / circle.size, combine);
  }
  return phases;
}

}  // namespace

// steps P-1, bytes n(P-1)/P
Schedule ring_reduce_scatter(const Circle& circle, const Chunks& chunks) {
  Schedule schedule;
  schedule.reserve(circle.size - 1);
  Rank next = circle.rank_at(circle.position + 1), before = circle.rank_at(circle.position - 1);
  for (Rank i = 1; i < circle.size; i++)
    add_round(schedule, {next, chunks.at(circle.position - i), before,
                         chunks.at(circle.position - i - 1), Combine::kReduce});
  return schedule;
}

// steps P-1, bytes n(P-1)/P
Schedule ring_allgather(const Circle& circle, const Chunks& chunks) {
  Schedule schedule;
  schedule.reserve(circle.size - 1);
  Rank next = circle.rank_at(circle.position + 1), before = circle.rank_at(circle.position - 1);
  for (Rank i = 1; i < circle.size; i++)
    add_round(schedule, {next, chunks.at(circle.position - i + 1), before,
                         chunks.at(circle.position - i), Combine::kCopy});
  return schedule;
}

ScheduleRow allreduce_ring() {
  return {.collective = RC_ALLREDUCE,
          .name = "ring",
          .summary = "reduce-scatter, then allgather, each round a ring",
          .cost = "steps 2(P-1), bytes 2n(P-1)/P",
          .make =
              [](const Problem& problem) {
                Circle circle(problem);
                Chunks chunks = even_chunks(problem);
                return compose(ring_reduce_scatter(circle, chunks), ring_allgather(circle, chunks));
              },
          .traffic = ring_traffic<true, true>};
}

ScheduleRow reduce_scatter_ring() {
  return {.collective = RC_REDUCE_SCATTER,
          .name = "ring",
          .summary = "partial sums travel round a ring and end at their owner",
          .cost = "steps P-1, bytes n(P-1)/P",
          .make =
              [](const Problem& problem) {
                return ring_reduce_scatter(Circle(problem), Chunks(problem.counts));
              },
          .traffic = ring_traffic<true, false>};
}

ScheduleRow allgather_ring() {
  return {.collective = RC_ALLGATHER,
          .name = "ring",
          .summary = "every chunk travels round a ring",
          .cost = "steps P-1, bytes n(P-1)/P",
          .make =
              [](const Problem& problem) {
                return ring_allgather(Circle(problem), Chunks(problem.counts));
              },
          .traffic = ring_traffic<false, true>};
}

}  // namespace ringcoll
