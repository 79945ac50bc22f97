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
  return traits.takes_recv_counts() ? space + sum(problem.recv_counts) : space;
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

std::vector<bool> early_sends(const Schedule& schedule, Rank rank) {
  std::map<int64_t, int64_t> received;  // first to end of ranges that do not touch one another
  std::set<Rank> peers;
  auto depends = [&](Range range) {
    auto after = received.lower_bound(range.end());
    return after != received.begin() && std::prev(after)->second > range.first;
  };
  auto add = [&](Range range) {
    int64_t first = range.first, end = range.end();
    auto at = received.upper_bound(end);
    while (at != received.begin() && std::prev(at)->second >= first) {
      --at;
      first = std::min(first, at->first);
      end = std::max(end, at->second);
      at = received.erase(at);
    }
    received.emplace_hint(at, first, end);
  };
  std::vector<bool> early(schedule.size(), false);
  for (size_t i = 0; i < schedule.size(); i++) {
    const Step& step = schedule[i];
    bool sends = step.send_to != kNobody && step.send_to != rank;
    early[i] = sends && peers.insert(step.send_to).second && !step.send.empty() &&
               (step.sends_input || !depends(step.send));
    if (step.recv_from != kNobody && !step.recv.empty()) add(step.recv);
  }
  return early;
}

namespace {

void to_first_round(const std::vector<std::vector<bool>>& early, std::vector<Traffic>* rounds) {
  for (size_t i = 1; i < rounds->size(); i++) {
    std::vector<Message> rest;
    for (const Message& message : std::exchange((*rounds)[i].messages, {}))
      (early[message.from][i] ? rounds->front().messages : rest).push_back(message);
    (*rounds)[i].messages = std::move(rest);
  }
}

}  // namespace

std::vector<Traffic> traffic_of(const ScheduleRow& row, const Problem& problem,
                                int64_t most_steps) {
  bool chunked = row.collective != RC_ALLREDUCE && row.collective != RC_BROADCAST &&
                 row.collective != RC_REDUCE;
  std::vector<int64_t> counts(chunked ? problem.size : 1, kPricedElements);
  double whole = static_cast<double>(kPricedElements) * static_cast<double>(counts.size());
  Problem one = problem;
  one.counts = one.recv_counts = counts;
  std::vector<Traffic> rounds;
  std::vector<std::vector<bool>> early;  // of each rank, in one domain
  for (one.rank = 0; one.rank < problem.size; one.rank++) {
    Schedule schedule = row.make(one);
    if (static_cast<int64_t>(schedule.size()) * problem.size > most_steps) return {};
    rounds.resize(schedule.size());
    if (row.where == Where::kOneDomain) early.push_back(early_sends(schedule, one.rank));
    for (size_t i = 0; i < schedule.size(); i++) {
      const Step& step = schedule[i];
      if (step.recv_from == kNobody || step.recv_from == one.rank) continue;
      double share = static_cast<double>(step.recv.count) / whole;
      rounds[i].messages.push_back({step.recv_from, one.rank, share, step.combine});
    }
  }
  if (!early.empty()) to_first_round(early, &rounds);
  return rounds;
}

}  // namespace ringcoll
