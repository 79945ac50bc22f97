// Direct and one-shot schedules: every rank exchanges with a different rank each round. Nothing is
// forwarded, so no round waits for another. In shared memory, a rank reduces its share straight
// from the memory of the others.
//
// Pairwise exchange as in Thakur, Rabenseifner and Gropp, "Optimization of collective communication
// operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).
#include "schedule/families.h"

namespace ringcoll {
namespace {

Schedule make_alltoall(const Problem& problem) {
  Rank rank = problem.rank, size = problem.size;
  Chunks out(problem.counts), in(problem.recv_counts);
  auto received = [&](Rank from) {
    Range range = in.at(from);
    return Range{out.total() + range.first, range.count};
  };
  Schedule schedule;
  schedule.reserve(size);
  for (Rank i = 0; i < size; i++) {
    Rank to = (rank + i) % size, from = (rank - i + size) % size;
    add_round(schedule, {to, out.at(to), from, received(from), Combine::kCopy});
  }
  return schedule;
}

std::vector<Traffic> alltoall_traffic(const Problem& problem) {
  return traffic_by_distance(problem, 1, 1.0 / problem.size);
}

}  // namespace

std::vector<Traffic> traffic_by_distance(const Problem& problem, Rank stride, double share) {
  constexpr int64_t kMostMessages = 4 << 20;
  Rank size = problem.size, near = stride;
  for (const Groups& groups : problem.levels) {
    for (Rank group = 0; group < groups.count(); group++)
      if (groups.size_of(group) != groups.size_of(0)) return {};
    if (groups.count() > 1) near = groups.size_of(0);
  }
  if (int64_t{2} * near / stride * size > kMostMessages) return {};
  std::vector<Traffic> rounds;
  for (Rank i = stride; i < size; i += stride) {
    bool far = i >= near && i <= size - near;
    Traffic& round = rounds.emplace_back(Traffic{{}, far ? (size - 2 * near) / stride + 1 : 1});
    for (Rank rank = 0; rank < size; rank++)
      round.messages.push_back({rank, (rank + i) % size, share});
    if (far) i = size - near;
  }
  return rounds;
}

// steps P-1, bytes n(P-1)/P
Schedule pairwise_reduce_scatter(const Circle& circle, const Chunks& chunks) {
  Schedule schedule;
  schedule.reserve(circle.size - 1);
  for (Rank i = 1; i < circle.size; i++) {
    Rank to = circle.position + i, from = circle.position - i;
    add_round(schedule, {circle.rank_at(to), chunks.at(to), circle.rank_at(from),
                         chunks.at(circle.position), Combine::kReduce});
  }
  return schedule;
}

// steps P-1, bytes n(P-1)/P
Schedule pairwise_allgather(const Circle& circle, const Chunks& chunks) {
  Schedule schedule;
  schedule.reserve(circle.size - 1);
  for (Rank i = 1; i < circle.size; i++) {
    Rank to = circle.position + i, from = circle.position - i;
    add_round(schedule, {circle.rank_at(to), chunks.at(circle.position), circle.rank_at(from),
                         chunks.at(from), Combine::kCopy});
  }
  return schedule;
}

namespace {

// Every rank sends its input to all others, and combines all inputs, its own among them, in rank
// order. So all ranks get the same bits. Rank a sends to rank b in round a + P-1 - b. So b receives
// in rank order, and at most once in a round. All sends may leave early, which makes this one shot.
// Rank 0 begins with its own input. Rank 1 combines its own input to the right of rank 0's.
Schedule make_one_shot(const Problem& problem) {
  Rank rank = problem.rank, size = problem.size;
  Range all{0, problem.counts[0]};
  Schedule schedule;
  schedule.reserve(2 * size - 1);
  for (Rank round = 0; round < 2 * size - 1; round++) {
    Rank to = rank + size - 1 - round, from = rank - (size - 1) + round;
    if (to == rank) {
      bool folds = rank > 1;
      add_round(schedule, folds ? Step{rank, all, rank, all, Combine::kFold} : Step{});
      continue;
    }
    Step step{
        .combine = from == 0 ? (rank > 1 ? Combine::kCopy : Combine::kReduce) : Combine::kFold,
        .sends_input = true};
    if (to >= 0 && to < size) step.send_to = to, step.send = all;
    if (from >= 0 && from < size) step.recv_from = from, step.recv = all;
    add_round(schedule, step);
  }
  return schedule;
}

}  // namespace

ScheduleRow allreduce_one_shot() {
  return {.collective = RC_ALLREDUCE,
          .name = "one_shot",
          .summary = "each rank reads the vectors of all others and combines them itself",
          .cost = "steps 2(P-1), bytes n(P-1)",
          .make = make_one_shot,
          .where = Where::kOneDomain};
}

ScheduleRow allreduce_direct() {
  return {.collective = RC_ALLREDUCE,
          .name = "direct",
          .summary = "each rank reduces its share from all others, then reads theirs",
          .cost = "steps 2(P-1), bytes 2n(P-1)/P",
          .make =
              [](const Problem& problem) {
                Circle circle(problem);
                Chunks chunks = even_chunks(problem);
                return compose(pairwise_reduce_scatter(circle, chunks),
                               pairwise_allgather(circle, chunks));
              },
          .where = Where::kOneDomain};
}

ScheduleRow reduce_scatter_direct() {
  return {.collective = RC_REDUCE_SCATTER,
          .name = "direct",
          .summary = "each rank reduces its chunk from all others",
          .cost = "steps P-1, bytes n(P-1)/P",
          .make =
              [](const Problem& problem) {
                return pairwise_reduce_scatter(Circle(problem), Chunks(problem.counts));
              },
          .where = Where::kOneDomain};
}

ScheduleRow allgather_direct() {
  return {.collective = RC_ALLGATHER,
          .name = "direct",
          .summary = "each rank reads the chunks of all others",
          .cost = "steps P-1, bytes n(P-1)/P",
          .make =
              [](const Problem& problem) {
                return pairwise_allgather(Circle(problem), Chunks(problem.counts));
              },
          .where = Where::kOneDomain};
}

ScheduleRow alltoall_direct() {
  return {.collective = RC_ALLTOALL,
          .name = "direct",
          .summary = "a different partner each round; each rank copies its own block",
          .cost = "steps P-1, bytes n(P-1)/P",
          .make = make_alltoall,
          .traffic = alltoall_traffic};
}

}  // namespace ringcoll
