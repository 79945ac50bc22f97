// Binomial tree: the number of ranks that have the data doubles each round. Best for short vectors.
// The farthest are served first, so that subtrees are neighbours in the ring order.
//
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// Int. J. High Perform. Comput. Appl. 19 (2005).
#include <algorithm>

#include "schedule/families.h"

namespace ringcoll {
namespace {

/// What a position does in the round in which parents reach over `distance`: parent, child or
/// neither.
struct TreeRound {
  Rank parent = kNobody;  // position of my parent, if this is the round in which I meet it
  Rank child = kNobody;   // position of the child that I meet
};
TreeRound tree_round(const Circle& circle, Rank distance) {
  TreeRound round;
  Rank within = circle.position % (2 * distance);
  if (within == distance) round.parent = circle.position - distance;
  if (within == 0 && circle.position + distance < circle.size)
    round.child = circle.position + distance;
  return round;
}

/// The longest reach of a tree of `size`, a power of two; 0 for one rank.
Rank reach_of(Rank size) { return size == 1 ? 0 : 1 << (ceil_log2(size) - 1); }

// steps ceil(lg P), bytes n ceil(lg P)
Schedule make_broadcast(const Problem& problem) {
  Circle circle(problem, problem.root);
  Range all = {0, problem.counts[0]};
  Schedule schedule;
  for (Rank distance = reach_of(circle.size); distance >= 1; distance /= 2) {
    auto [parent, child] = tree_round(circle, distance);
    Step step;
    if (parent != kNobody) step = {kNobody, {}, circle.rank_at(parent), all, Combine::kCopy};
    if (child != kNobody) step = {circle.rank_at(child), all, kNobody, {}, Combine::kCopy};
    add_round(schedule, step);
  }
  return schedule;
}

// steps ceil(lg P), bytes n
Schedule make_reduce(const Problem& problem) {
  Circle circle(problem, problem.root);
  Range all = {0, problem.counts[0]};
  Schedule schedule;
  for (Rank distance = 1; distance < circle.size; distance *= 2) {
    auto [parent, child] = tree_round(circle, distance);
    Step step;
    if (parent != kNobody) step = {circle.rank_at(parent), all, kNobody, {}, Combine::kReduce};
    if (child != kNobody) step = {kNobody, {}, circle.rank_at(child), all, Combine::kReduce};
    add_round(schedule, step);
  }
  return schedule;
}

}  // namespace

Rank subtree_end(Rank position, Rank size) {
  if (position == 0) return size;
  Rank lowest_bit = position & -position;
  return std::min(position + lowest_bit, size);
}

// steps ceil(lg P), bytes n(P-1)/P
Schedule binomial_scatter(const Circle& circle, const Chunks& chunks) {
  Schedule schedule;
  auto subtree = [&](Rank p) { return chunks.between(p, subtree_end(p, circle.size)); };
  for (Rank distance = reach_of(circle.size); distance >= 1; distance /= 2) {
    auto [parent, child] = tree_round(circle, distance);
    Step step;
    if (parent != kNobody)
      step = {kNobody, {}, circle.rank_at(parent), subtree(circle.position), Combine::kCopy};
    if (child != kNobody)
      step = {circle.rank_at(child), subtree(child), kNobody, {}, Combine::kCopy};
    add_round(schedule, step);
  }
  return schedule;
}

ScheduleRow broadcast_binomial() {
  return {.collective = RC_BROADCAST,
          .name = "binomial",
          .summary = "whole vectors down a binomial tree",
          .cost = "steps ceil(lg P), bytes n ceil(lg P)",
          .make = make_broadcast,
          .price = [](const Problem& problem) {
            int64_t rounds = problem.counts[0] > 0 ? ceil_log2(problem.size) : 0;
            return Cost{rounds, rounds * problem.counts[0]};
          }};
}

ScheduleRow reduce_binomial() {
  return {.collective = RC_REDUCE,
          .name = "binomial",
          .summary = "whole vectors up a binomial tree",
          .cost = "steps ceil(lg P), bytes n",
          .make = make_reduce,
          .price = [](const Problem& problem) {
            bool any = problem.size > 1 && problem.counts[0] > 0;
            int64_t rounds = ceil_log2(problem.size);
            return any ? Cost{rounds, problem.counts[0], rounds * problem.counts[0]} : Cost{};
          }};
}

}  // namespace ringcoll
