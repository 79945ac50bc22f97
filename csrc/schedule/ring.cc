// Ring: every rank sends to the next and receives from the one before, one chunk a round. Best in
// bytes, and on any network on which neighbours in the ring order are near.
//
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
// J. Parallel Distrib. Comput. 69 (2009).
#include <algorithm>

#include "schedule/families.h"

namespace ringcoll {
namespace {

/// Whether the round in which a rank sends chunk j and receives chunk j-1 carries a message.
bool busy(const Chunks& chunks, Rank j) {
  return !chunks.at(j).empty() || !chunks.at(j - 1).empty();
}

/// The cost for the rank that pays most. In a reduce-scatter position p has the rounds of all
/// chunks but p, in an allgather of all but p+1, so that the whole circle is counted once.
Cost price_circle(const Chunks& chunks, bool reduce_scatter, bool allgather) {
  int phases = reduce_scatter + allgather;
  int64_t rounds = 0;
  for (Rank j = 0; j < chunks.size(); j++) rounds += busy(chunks, j);
  Cost most;
  for (Rank p = 0; p < chunks.size(); p++) {
    Cost spared;
    if (reduce_scatter) spared = {busy(chunks, p), chunks.at(p).count};
    if (allgather) spared.steps += busy(chunks, p + 1);
    if (allgather) spared.elements += chunks.at(p + 1).count;
    most.steps = std::max(most.steps, phases * rounds - spared.steps);
    most.elements = std::max(most.elements, phases * chunks.total() - spared.elements);
    // A rank combines every chunk but the one that it sends first.
    if (reduce_scatter)
      most.combined = std::max(most.combined, chunks.total() - chunks.at(p).count);
  }
  return most;
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

int64_t ring_reduce_scatter_rounds(const Chunks& chunks, Rank position) {
  int64_t rounds = 0;
  for (Rank j = 0; j < chunks.size(); j++) rounds += j != position && busy(chunks, j);
  return rounds;
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
  return {
      .collective = RC_ALLREDUCE,
      .name = "ring",
      .summary = "reduce-scatter, then allgather, each round a ring",
      .cost = "steps 2(P-1), bytes 2n(P-1)/P",
      .make =
          [](const Problem& problem) {
            Circle circle(problem);
            Chunks chunks = even_chunks(problem);
            return compose(ring_reduce_scatter(circle, chunks), ring_allgather(circle, chunks));
          },
      .price =
          [](const Problem& problem) { return price_circle(even_chunks(problem), true, true); }};
}

ScheduleRow reduce_scatter_ring() {
  return {
      .collective = RC_REDUCE_SCATTER,
      .name = "ring",
      .summary = "partial sums travel round a ring and end at their owner",
      .cost = "steps P-1, bytes n(P-1)/P",
      .make =
          [](const Problem& problem) {
            return ring_reduce_scatter(Circle(problem), Chunks(problem.counts));
          },
      .price =
          [](const Problem& problem) { return price_circle(Chunks(problem.counts), true, false); }};
}

ScheduleRow allgather_ring() {
  return {
      .collective = RC_ALLGATHER,
      .name = "ring",
      .summary = "every chunk travels round a ring",
      .cost = "steps P-1, bytes n(P-1)/P",
      .make =
          [](const Problem& problem) {
            return ring_allgather(Circle(problem), Chunks(problem.counts));
          },
      .price =
          [](const Problem& problem) { return price_circle(Chunks(problem.counts), false, true); }};
}

}  // namespace ringcoll
