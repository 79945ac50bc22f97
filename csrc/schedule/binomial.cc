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

/// From the root on, each parent sends its child `range_of(child)`.
template <typename RangeOf>
Schedule down_the_tree(const Circle& circle, RangeOf&& range_of) {
  Schedule schedule;
  for (Rank distance = reach_of(circle.size); distance >= 1; distance /= 2) {
    auto [parent, child] = tree_round(circle, distance);
    Step step;
    if (parent != kNobody)
      step = {kNobody, {}, circle.rank_at(parent), range_of(circle.position), Combine::kCopy};
    if (child != kNobody)
      step = {circle.rank_at(child), range_of(child), kNobody, {}, Combine::kCopy};
    add_round(schedule, step);
  }
  return schedule;
}

Schedule make_broadcast(const Problem& problem) {
  return binomial_broadcast(Circle(problem, problem.root), {0, problem.counts[0]});
}

}  // namespace

Rank subtree_end(Rank position, Rank size) {
  if (position == 0) return size;
  Rank lowest_bit = position & -position;
  return std::min(position + lowest_bit, size);
}

// steps ceil(lg P), bytes n ceil(lg P)
Schedule binomial_broadcast(const Circle& circle, Range range) {
  return down_the_tree(circle, [&](Rank) { return range; });
}

// steps ceil(lg P), bytes n(P-1)/P
Schedule binomial_scatter(const Circle& circle, const Chunks& chunks) {
  return down_the_tree(circle,
                       [&](Rank p) { return chunks.between(p, subtree_end(p, circle.size)); });
}

// steps ceil(lg P), bytes n/P in a leaf
Schedule binomial_gather(const Circle& circle, const Chunks& chunks) {
  return backwards(binomial_scatter(circle, chunks));
}

// steps 2ceil(lg P)
Schedule binomial_completion(const Circle& circle, const Chunks& chunks, Range whole) {
  auto before = [&](Rank p) {
    return Range{whole.first, chunks.between(p, p).first - whole.first};
  };
  auto after = [&](Rank p) {
    int64_t end = chunks.between(p, subtree_end(p, circle.size)).end();
    return Range{end, whole.end() - end};
  };
  Schedule first = down_the_tree(circle, before);
  return interleaved({first, down_the_tree(circle, after)}, first.size());
}

ScheduleRow broadcast_binomial() {
  return {.collective = RC_BROADCAST,
          .name = "binomial",
          .summary = "whole vectors down a binomial tree",
          .cost = "steps ceil(lg P), bytes n ceil(lg P)",
          .make = make_broadcast};
}

ScheduleRow reduce_binomial() {
  return {.collective = RC_REDUCE,
          .name = "binomial",
          .summary = "whole vectors up a binomial tree",
          .cost = "steps ceil(lg P), bytes n",
          .make = [](const Problem& problem) { return transposed(make_broadcast(problem)); }};
}

}  // namespace ringcoll
