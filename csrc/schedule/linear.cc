// Linear: the root exchanges with every other rank itself, one each round. The fewest bytes in all,
// and what a chunk of its own for each rank needs.
#include <algorithm>
#include <utility>

#include "schedule/families.h"

namespace ringcoll {
namespace {

Circle from_root(const Problem& problem) { return Circle(problem, problem.root); }

/// The chunk of a position: chunks lie in the order of ranks, or in that of the circle.
Range chunk_at(const Circle& circle, const Chunks& chunks, Rank position, bool by_rank) {
  return chunks.at(by_rank ? circle.rank_at(position) : position);
}

Schedule gather(const Circle& circle, const Chunks& chunks, bool by_rank) {
  Schedule schedule;
  for (Rank i = 1; i < circle.size; i++) {
    Range chunk = chunk_at(circle, chunks, i, by_rank);
    Step step;
    if (circle.position == 0) step = {kNobody, {}, circle.rank_at(i), chunk, Combine::kCopy};
    if (circle.position == i) step = {circle.root, chunk, kNobody, {}, Combine::kCopy};
    add_round(schedule, step);
  }
  return schedule;
}

Schedule mirrored(Schedule schedule) {
  for (Step& step : schedule) {
    std::swap(step.send_to, step.recv_from);
    std::swap(step.send, step.recv);
  }
  return schedule;
}

Schedule make_broadcast(const Problem& problem) {
  Circle circle = from_root(problem);
  Range all = {0, problem.counts[0]};
  Schedule schedule;
  for (Rank i = 1; i < circle.size; i++) {
    Step step;
    if (circle.position == 0) step = {circle.rank_at(i), all, kNobody, {}, Combine::kCopy};
    if (circle.position == i) step = {kNobody, {}, circle.root, all, Combine::kCopy};
    add_round(schedule, step);
  }
  return schedule;
}

/// Rounds of the root: one for each other rank that has a chunk.
int64_t root_rounds(const Problem& problem) {
  int64_t rounds = 0;
  for (Rank r = 0; r < problem.size; r++) rounds += r != problem.root && problem.counts[r] > 0;
  return rounds;
}

}  // namespace

Schedule linear_gather(const Circle& circle, const Chunks& chunks) {
  return gather(circle, chunks, false);
}

ScheduleRow broadcast_direct() {
  return {.collective = RC_BROADCAST,
          .name = "direct",
          .summary = "every rank reads the root's memory",
          .cost = "steps P-1, bytes n(P-1)",
          .make = make_broadcast,
          .price =
              [](const Problem& problem) {
                int64_t others = problem.counts[0] > 0 ? problem.size - 1 : 0;
                return Cost{others, others * problem.counts[0]};
              },
          .domain_only = true};
}

ScheduleRow gather_direct() {
  return {.collective = RC_GATHER,
          .name = "direct",
          .summary = "every rank sends its chunk to the root",
          .cost = "steps P-1, bytes n/P",
          .make =
              [](const Problem& problem) {
                return gather(from_root(problem), Chunks(problem.counts), true);
              },
          .price =
              [](const Problem& problem) {
                Cost cost = {root_rounds(problem), 0};
                for (Rank r = 0; r < problem.size; r++)
                  if (r != problem.root) cost.elements = std::max(cost.elements, problem.counts[r]);
                return cost;
              }};
}

ScheduleRow scatter_direct() {
  return {.collective = RC_SCATTER,
          .name = "direct",
          .summary = "the root sends each rank its chunk",
          .cost = "steps P-1, bytes n(P-1)/P",
          .make =
              [](const Problem& problem) {
                return mirrored(gather(from_root(problem), Chunks(problem.counts), true));
              },
          .price =
              [](const Problem& problem) {
                Chunks chunks(problem.counts);
                return Cost{root_rounds(problem), chunks.total() - problem.counts[problem.root]};
              }};
}

}  // namespace ringcoll
