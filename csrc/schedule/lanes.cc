// see the header
#include "schedule/lanes.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

namespace ringcoll {
namespace {

/// Gives a lane the first turn in which none of its carriers has a lane yet.
class Turns {
 public:
  size_t take(std::span<const Rank> carriers) {
    auto taken = [&](size_t turn) {
      return std::ranges::any_of(carriers, [&](Rank r) { return of_[r].contains(turn); });
    };
    size_t turn = 0;
    while (taken(turn)) turn++;
    for (Rank r : carriers) of_[r].insert(turn);
    return turn;
  }

 private:
  std::unordered_map<Rank, std::set<size_t>> of_;
};

Holdings split(const std::vector<Lane>& lanes) {
  Holdings holdings;
  for (const Lane& lane : lanes) {
    Chunks chunks = even_chunks(lane.range, static_cast<Rank>(lane.carriers.size()));
    for (Rank i = 0; i < chunks.size(); i++)
      if (!chunks.at(i).empty()) holdings.push_back({chunks.at(i), lane.carriers[i]});
  }
  return holdings;
}

size_t rounds_of(const Spread& spread, size_t carriers) {
  std::vector<Rank> members(carriers);
  std::iota(members.begin(), members.end(), 0);
  return spread.make(Circle(0, std::move(members)), {0, static_cast<int64_t>(carriers)}).size();
}

}  // namespace

std::vector<Lane> lanes_among(std::span<const Holdings> groups) {
  std::vector<Lane> lanes;
  Turns turns;
  std::vector<size_t> at(groups.size(), 0);
  while (at[0] < groups[0].size()) {
    int64_t first = lanes.empty() ? groups[0][0].range.first : lanes.back().range.end();
    int64_t end = groups[0][at[0]].range.end();
    for (size_t g = 1; g < groups.size(); g++) end = std::min(end, groups[g][at[g]].range.end());
    Lane lane = {{first, end - first}, {}, 0};
    for (size_t g = 0; g < groups.size(); g++) {
      lane.carriers.push_back(groups[g][at[g]].rank);
      if (groups[g][at[g]].range.end() == end) at[g]++;
    }
    lane.turn = turns.take(lane.carriers);
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

std::vector<LaneLevel> lanes_of(std::span<const Groups> levels, Range range, HostLanes lanes) {
  Rank ranks = levels.back().end(levels.back().count() - 1);
  std::vector<Holdings> held;  // by group of the level below; first, each rank is a group
  for (Rank r = 0; r < ranks; r++)
    held.push_back(range.empty() ? Holdings{} : Holdings{{range, r}});
  std::vector<LaneLevel> all;
  Rank first_of_held = 0;
  for (const Groups& groups : levels) {
    LaneLevel& level = all.emplace_back();
    std::vector<Holdings> joined;
    first_of_held = 0;
    for (Rank g = 0; g < groups.count(); g++) {
      // `members` are the groups of the level below that make up this group.
      Rank end = first_of_held, last_rank = groups.end(g);
      const Groups* before = all.size() > 1 ? &levels[all.size() - 2] : nullptr;
      while (end < static_cast<Rank>(held.size()) &&
             (before ? before->first(end) : end) < last_rank)
        end++;
      auto members = std::span(held).subspan(first_of_held, end - first_of_held);
      first_of_held = end;
      level.of_group.push_back(range.empty() ? std::vector<Lane>{} : lanes_among(members));
      level.carriers = std::max(level.carriers, members.size());
      for (const Lane& lane : level.of_group.back())
        level.turns = std::max(level.turns, lane.turn + 1);
      bool to_first = all.size() == 1 && lanes == HostLanes::kFirstRank && !range.empty();
      joined.push_back(to_first ? Holdings{{range, groups.first(g)}} : split(level.of_group[g]));
    }
    held = std::move(joined);
  }
  return all;
}

LaneLevel lanes_between(const Groups& hosts, Range range) {
  LaneLevel level;
  level.carriers = static_cast<size_t>(hosts.count());
  auto& lanes = level.of_group.emplace_back();
  if (range.empty()) return level;
  std::vector<Holdings> held;
  for (Rank host = 0; host < hosts.count(); host++) {
    Chunks parts = even_chunks(range, hosts.size_of(host));
    Holdings& own = held.emplace_back();
    for (Rank i = 0; i < parts.size(); i++)
      if (!parts.at(i).empty()) own.push_back({parts.at(i), hosts.first(host) + i});
  }
  lanes = lanes_among(held);
  for (const Lane& lane : lanes) level.turns = std::max(level.turns, lane.turn + 1);
  return level;
}

Schedule schedule_of(const LaneLevel& level, Rank group, Rank rank, const Spread& spread) {
  std::vector<Schedule> turns(level.turns);
  for (const Lane& lane : level.of_group[group]) {
    auto me = std::ranges::find(lane.carriers, rank);
    if (me == lane.carriers.end()) continue;
    Circle circle(static_cast<Rank>(me - lane.carriers.begin()), lane.carriers);
    turns[lane.turn] = spread.make(circle, lane.range);
  }
  return interleaved(turns, rounds_of(spread, level.carriers));
}

std::vector<Traffic> traffic_of(const LaneLevel& level, const Spread& spread, int64_t whole,
                                bool reduces) {
  std::vector<Traffic> rounds;
  size_t longest = rounds_of(spread, level.carriers);
  // With `alike`, rounds cost the same until a lane ends. `ends` has the numbers of rounds of all
  // lanes.
  std::set<size_t> ends;
  for (const auto& lanes : level.of_group)
    for (const Lane& lane : lanes) ends.insert(rounds_of(spread, lane.carriers.size()));
  for (size_t round = 0; round < longest; round++) {
    if (spread.alike && round > 0 && !ends.contains(round)) {
      for (size_t t = rounds.size() - level.turns; t < rounds.size(); t++) rounds[t].times++;
      continue;
    }
    rounds.resize(rounds.size() + level.turns);
  }
  auto add = [&](size_t at, const Step& step, Rank rank) {
    if (step.recv_from == kNobody) return;
    double share = static_cast<double>(step.recv.count) / static_cast<double>(whole);
    if (reduces)
      rounds[at].messages.push_back({rank, step.recv_from, share, Combine::kReduce});
    else
      rounds[at].messages.push_back({step.recv_from, rank, share, step.combine});
  };
  for (const auto& lanes : level.of_group)
    for (const Lane& lane : lanes)
      for (size_t i = 0; i < lane.carriers.size(); i++) {
        Schedule schedule = spread.make(Circle(static_cast<Rank>(i), lane.carriers), lane.range);
        for (size_t round = 0, at = lane.turn; round < schedule.size(); at += level.turns) {
          add(at, schedule[round], lane.carriers[i]);
          round += spread.alike ? static_cast<size_t>(rounds[at].times) : 1;
        }
      }
  return rounds;
}

std::vector<Groups> two_levels(const Problem& problem) {
  Groups all({0}, problem.size);
  return {problem.levels.empty() ? all : problem.levels.front(), all};
}

HostView::HostView(const Problem& problem)
    : levels(two_levels(problem)), rank(problem.rank), host(hosts().of(rank)) {
  for (Rank h = 0; h < hosts().count(); h++) largest = std::max(largest, hosts().size_of(h));
}

Circle HostView::circle_of(Rank host) const {
  return host_circle(hosts(), hosts().first(host), hosts().first(host));
}

void pad(Schedule& schedule, size_t rounds) { schedule.resize(std::max(schedule.size(), rounds)); }

Circle host_circle(const Groups& hosts, Rank rank, Rank first) {
  Rank host = hosts.of(rank);
  std::vector<Rank> members;
  for (Rank r = first; r < hosts.end(host); r++) members.push_back(r);
  for (Rank r = hosts.first(host); r < first; r++) members.push_back(r);
  auto position = std::ranges::find(members, rank) - members.begin();
  return Circle(static_cast<Rank>(position), std::move(members));
}

}  // namespace ringcoll
