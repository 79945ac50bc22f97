// see the header
#include "schedule/schedule.h"

#include <numeric>
#include <utility>

#include "schedule/families.h"

namespace ringcoll {

Schedule compose(Schedule first, Schedule second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<int64_t> even_counts(int64_t count, Rank parts) {
  std::vector<int64_t> counts(parts, count / parts);
  for (int64_t i = 0; i < count % parts; i++) counts[i]++;
  return counts;
}

std::vector<int64_t> offsets_of(std::span<const int64_t> counts) {
  std::vector<int64_t> offsets(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

int64_t space_of(Collective collective, const Problem& problem) {
  auto sum = [](std::span<const int64_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  switch (collective) {
    case RC_ALLREDUCE:
    case RC_BROADCAST:
    case RC_REDUCE:
      return problem.counts[0];
    case RC_ALLGATHER:
    case RC_GATHER:
    case RC_REDUCE_SCATTER:
    case RC_SCATTER:
      return sum(problem.counts);
    case RC_ALLTOALL:
      return sum(problem.counts) + sum(problem.recv_counts);
    case RC_BARRIER:
      break;
  }
  return 0;
}

void add_round(Schedule& schedule, Step step) {
  if (step.send.empty()) step.send_to = kNobody;
  if (step.recv.empty()) step.recv_from = kNobody;
  schedule.push_back(step);
}

Cost cost_of(const Schedule& schedule, Rank rank) {
  Cost cost;
  for (const Step& step : schedule) {
    bool sends = step.send_to != kNobody && step.send_to != rank;
    bool receives = step.recv_from != kNobody && step.recv_from != rank;
    cost.steps += sends || receives;
    cost.elements += sends ? step.send.count : 0;
    cost.combined += receives && step.combine == Combine::kReduce ? step.recv.count : 0;
  }
  return cost;
}

}  // namespace ringcoll
