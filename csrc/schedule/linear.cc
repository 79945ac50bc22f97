// Linear schedules: in each round the root exchanges with one other rank. No gather or scatter
// moves fewer bytes in all, since each rank has a chunk of its own.
#include <utility>

#include "schedule/families.h"

namespace ringcoll {
namespace {

Circle from_root(const Problem& problem) { return Circle(problem, problem.root); }

/// The chunk of a position. Chunks lie in rank order (`by_rank`) or in the order of the circle.
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

Schedule linear_broadcast(const Problem& problem) {
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

std::vector<Traffic> one_by_one_to_root(const Problem& problem) {
  return linear_gather_traffic(from_root(problem), 1.0 / problem.size);
}

std::vector<Traffic> one_by_one_from_root(const Problem& problem) {
  return linear_scatter_traffic(from_root(problem), 1.0 / problem.size);
}

}  // namespace

Schedule linear_gather(const Circle& circle, const Chunks& chunks) {
  return gather(circle, chunks, false);
}

std::vector<Traffic> linear_gather_traffic(const Circle& circle, double share) {
  std::vector<Traffic> rounds;
  for (Rank i = 1; i < circle.size; i++)
    rounds.push_back({{{circle.rank_at(i), circle.root, share}}});
  return rounds;
}

std::vector<Traffic> linear_scatter_traffic(const Circle& circle, double share) {
  std::vector<Traffic> rounds = linear_gather_traffic(circle, share);
  for (Traffic& round : rounds) std::swap(round.messages[0].from, round.messages[0].to);
  return rounds;
}

ScheduleRow broadcast_direct() {
  return {.collective = RC_BROADCAST,
          .name = "direct",
          .summary = "every rank reads the root's memory",
          .cost = "steps P-1, bytes n(P-1)",
          .make = linear_broadcast,
          .where = Where::kOneDomain};
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
          .traffic = one_by_one_to_root};
}

ScheduleRow scatter_direct() {
  return {.collective = RC_SCATTER,
          .name = "direct",
          .summary = "the root sends each rank its chunk",
          .cost = "steps P-1, bytes n(P-1)/P",
          .make =
              [](const Problem& problem) {
                return backwards(gather(from_root(problem), Chunks(problem.counts), true));
              },
          .traffic = one_by_one_from_root};
}

}  // namespace ringcoll
