// Binomial tree: the number of ranks that have the data doubles each round. Best for short vectors.
// The most distant ranks come first, so each subtree is contiguous in ring order.
//
// In gather and scatter, chunks lie in rank order, and a tree rotated to begin with the root would
// have subtrees of two ranges. There the ranks are halved again and again instead, and the root
// keeps its place. In each half, one rank has (or has collected) the chunks of the whole half.
//
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// Int. J. High Perform. Comput. Appl. 19 (2005).
#include <algorithm>
#include <utility>

#include "schedule/families.h"

namespace ringcoll {
namespace {

/// The role of a position in the round in which parents send over `distance`. It may be parent,
/// child or neither.
struct TreeRound {
  Rank parent = kNobody;  // position of its parent, if it is a child in this round
  Rank child = kNobody;   // position of its child, if it is a parent in this round
};
TreeRound tree_round(const Circle& circle, Rank distance) {
  TreeRound round;
  Rank within = circle.position % (2 * distance);
  if (within == distance) round.parent = circle.position - distance;
  if (within == 0 && circle.position + distance < circle.size)
    round.child = circle.position + distance;
  return round;
}

/// The longest distance in a tree of `size` positions, a power of two; 0 for one position.
Rank reach_of(Rank size) { return size == 1 ? 0 : 1 << (ceil_log2(size) - 1); }

/// Each parent, beginning with the root, sends `range_of(child)` to its child.
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

/// Ranks [first, end). `root` is one of them and has the chunks of all.
struct Half {
  Rank first = 0;
  Rank end = 1;
  Rank root = 0;

  Rank size() const { return end - first; }
  /// The half that the root stays in, and the half whose chunks it sends to that half's root.
  std::pair<Half, Half> halves() const {
    Rank middle = first + (size() + 1) / 2;
    Half low{first, middle, root < middle ? root : first};
    Half high{middle, end, root < middle ? middle : root};
    return root < middle ? std::pair(low, high) : std::pair(high, low);
  }
};

Schedule make_scatter(const Problem& problem) {
  Chunks chunks(problem.counts);
  Schedule schedule;
  Half mine{0, problem.size, problem.root};
  for (int round = 0; round < ceil_log2(problem.size); round++) {
    Step step;
    if (mine.size() > 1) {
      auto [kept, given] = mine.halves();
      Range range = chunks.between(given.first, given.end);
      if (problem.rank == kept.root) step = {given.root, range, kNobody, {}, Combine::kCopy};
      if (problem.rank == given.root) step = {kNobody, {}, kept.root, range, Combine::kCopy};
      bool is_given = problem.rank >= given.first && problem.rank < given.end;
      mine = is_given ? given : kept;
    }
    add_round(schedule, step);
  }
  return schedule;
}

void add_scatter(const Half& half, Rank ranks, size_t round, std::vector<Traffic>* rounds) {
  if (half.size() == 1) return;
  auto [kept, given] = half.halves();
  double share = static_cast<double>(given.size()) / ranks;
  (*rounds)[round].messages.push_back({kept.root, given.root, share});
  add_scatter(kept, ranks, round + 1, rounds);
  add_scatter(given, ranks, round + 1, rounds);
}

std::vector<Traffic> scatter_traffic(const Problem& problem) {
  std::vector<Traffic> rounds(ceil_log2(problem.size));
  add_scatter({0, problem.size, problem.root}, problem.size, 0, &rounds);
  return rounds;
}

std::vector<Traffic> gather_traffic(const Problem& problem) {
  std::vector<Traffic> rounds = scatter_traffic(problem);
  std::ranges::reverse(rounds);
  for (Traffic& round : rounds)
    for (Message& message : round.messages) std::swap(message.from, message.to);
  return rounds;
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

ScheduleRow gather_binomial() {
  return {.collective = RC_GATHER,
          .name = "binomial",
          .summary = "chunks up a binomial tree",
          .cost = "steps at most ceil(lg P), bytes at most n(P+1)/P/2",
          .make = [](const Problem& problem) { return backwards(make_scatter(problem)); },
          .traffic = gather_traffic};
}

ScheduleRow scatter_binomial() {
  return {.collective = RC_SCATTER,
          .name = "binomial",
          .summary = "chunks down a binomial tree",
          .cost = "steps at most ceil(lg P), bytes n(P-1)/P",
          .make = make_scatter,
          .traffic = scatter_traffic};
}

}  // namespace ringcoll
