// see the header
#include "schedule/schedule.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/collectives.h"
#include "schedule/families.h"

namespace ringcoll {

Schedule compose(Schedule first, Schedule second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<int64_t> even_counts(int64_t count, Rank parts) {
  std::vector<int64_t> counts;
  counts.reserve(parts);
  for (Rank i = 0; i < parts; i++)
    counts.push_back(even_start(count, parts, i + 1) - even_start(count, parts, i));
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
  const CollectiveTraits& traits = traits_of(collective);
  if (traits.is_vector()) return problem.counts[0];
  int64_t space = traits.takes_counts() ? sum(problem.counts) : 0;
  return traits.exchanges() ? space + sum(problem.recv_counts) : space;
}

void add_round(Schedule& schedule, Step step) {
  if (step.send.empty()) step.send_to = kNobody;
  if (step.recv.empty()) step.recv_from = kNobody;
  schedule.push_back(step);
}

std::string_view name_of(Where where) {
  switch (where) {
    case Where::kAnywhere:
      return "any";
    case Where::kOneDomain:
      return "one domain";
    case Where::kHosts:
      return "hosts";
  }
  return "?";
}

Groups::Groups(std::vector<Rank> firsts, Rank ranks) : firsts_(std::move(firsts)) {
  firsts_.push_back(ranks);
  group_of_.reserve(ranks);
  for (Rank group = 0; group < count(); group++)
    group_of_.insert(group_of_.end(), size_of(group), group);
}

Schedule backwards(Schedule schedule) {
  std::ranges::reverse(schedule);
  for (Step& step : schedule) {
    std::swap(step.send_to, step.recv_from);
    std::swap(step.send, step.recv);
  }
  return schedule;
}

Schedule transposed(Schedule schedule) {
  schedule = backwards(std::move(schedule));
  for (Step& step : schedule) step.combine = Combine::kReduce;
  return schedule;
}

std::vector<Traffic> transposed(std::vector<Traffic> phases) {
  for (Traffic& phase : phases)
    for (Message& message : phase.messages) {
      std::swap(message.from, message.to);
      message.combine = Combine::kReduce;
    }
  return phases;
}

Schedule interleaved(const std::vector<Schedule>& schedules, size_t rounds) {
  Schedule all;
  all.reserve(schedules.size() * rounds);
  for (size_t round = 0; round < rounds; round++)
    for (const Schedule& one : schedules) all.push_back(round < one.size() ? one[round] : Step{});
  return all;
}

namespace {

/// The last round in which each element was received.
class LastReceived {
 public:
  void add(Range range, size_t round) {
    cut(range.first);
    cut(range.end());
    rounds_.erase(rounds_.lower_bound(range.first), rounds_.lower_bound(range.end()));
    rounds_[range.first] = {range.end(), round};
  }
  /// The first round after all rounds in which a part of `range` was received.
  size_t after(Range range) const {
    size_t after = 0;
    auto at = rounds_.upper_bound(range.first);
    if (at != rounds_.begin()) --at;
    for (; at != rounds_.end() && at->first < range.end(); ++at)
      if (at->second.end > range.first) after = std::max(after, at->second.round + 1);
    return after;
  }

 private:
  struct Received {
    int64_t end;
    size_t round;
  };
  /// Splits the entry across `element`, so that no entry crosses it.
  void cut(int64_t element) {
    auto at = rounds_.lower_bound(element);
    if (at == rounds_.begin()) return;
    Received& before = std::prev(at)->second;
    if (before.end <= element) return;
    rounds_[element] = before;
    before.end = element;
  }

  std::map<int64_t, Received> rounds_;  // by first element; entries do not overlap
};

}  // namespace

std::vector<size_t> earliest_sends(const Schedule& schedule, Rank rank) {
  struct Sent {
    size_t earliest = 0;
    int ahead = 0;
  };
  LastReceived received;
  std::map<Rank, Sent> sent;  // by peer
  std::vector<size_t> earliest(schedule.size());
  for (size_t i = 0; i < schedule.size(); i++) {
    const Step& step = schedule[i];
    earliest[i] = i;
    if (step.send_to != kNobody && step.send_to != rank) {
      Sent& before = sent[step.send_to];
      size_t depends = step.sends_input ? 0 : received.after(step.send);
      bool may = !step.send.empty() && before.ahead < kMostAhead;
      if (may) earliest[i] = std::max(depends, before.earliest);
      before.earliest = earliest[i];
      before.ahead += earliest[i] < i;
    }
    if (step.recv_from != kNobody && !step.recv.empty()) received.add(step.recv, i);
  }
  return earliest;
}

namespace {

void to_earliest_rounds(const std::vector<std::vector<size_t>>& earliest,
                        std::vector<Traffic>* rounds) {
  for (size_t i = 1; i < rounds->size(); i++)
    for (const Message& message : std::exchange((*rounds)[i].messages, {}))
      (*rounds)[earliest[message.from][i]].messages.push_back(message);
}

}  // namespace

std::vector<Traffic> traffic_of(const ScheduleRow& row, const Problem& problem, int64_t most_steps,
                                bool one_domain) {
  const CollectiveTraits& traits = traits_of(row.collective);
  std::vector<int64_t> counts(traits.is_vector() ? 1 : problem.size, kPricedElements);
  double whole = static_cast<double>(kPricedElements) * static_cast<double>(counts.size());
  Problem one = problem;
  one.counts = one.recv_counts = counts;
  std::vector<Traffic> rounds;
  std::vector<std::vector<size_t>> earliest;  // by rank; only in one domain
  for (one.rank = 0; one.rank < problem.size; one.rank++) {
    Schedule schedule = row.make(one);
    if (static_cast<int64_t>(schedule.size()) * problem.size > most_steps) return {};
    rounds.resize(schedule.size());
    if (one_domain) earliest.push_back(earliest_sends(schedule, one.rank));
    for (size_t i = 0; i < schedule.size(); i++) {
      const Step& step = schedule[i];
      if (step.recv_from == kNobody || step.recv_from == one.rank) continue;
      double share = static_cast<double>(step.recv.count) / whole;
      rounds[i].messages.push_back({step.recv_from, one.rank, share, step.combine});
    }
  }
  if (one_domain) to_earliest_rounds(earliest, &rounds);
  return rounds;
}

}  // namespace ringcoll
