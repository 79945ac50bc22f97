// Broadcast and reduce over hosts: the vector enters every host once. A reduce is a transposed
// broadcast.
//
// Sources: see schedule/lanes.h, schedule/chain.cc and schedule/binomial.cc.

#include "schedule/families.h"
#include "schedule/lanes.h"

namespace ringcoll {
namespace {

struct RootedCluster : HostView {
  Range whole;
  Rank root;
  Rank root_host;

  RootedCluster(const Problem& problem, int64_t elements)
      : HostView(problem), whole{0, elements}, root(problem.root), root_host(hosts().of(root)) {}
  /// The circle of `of_host[h]`, one rank of each host h. It begins with the root's host.
  Circle across(const std::vector<Rank>& of_host) const {
    std::vector<Rank> members;
    for (Rank i = 0; i < hosts().count(); i++)
      members.push_back(of_host[(root_host + i) % hosts().count()]);
    return Circle((host - root_host + hosts().count()) % hosts().count(), std::move(members));
  }
};

/// The root sends each rank of its host its share.
Schedule scatter_shares(const RootedCluster& c) {
  Schedule schedule;
  Rank size = c.hosts().size_of(c.root_host), first = c.hosts().first(c.root_host);
  Chunks shares = even_chunks(c.whole, size);
  for (Rank i = 1; i < size; i++) {
    Rank at = (c.root - first + i) % size, to = first + at;
    Step step;
    if (c.rank == c.root) step = {to, shares.at(at), kNobody, {}, Combine::kCopy};
    if (c.rank == to) step = {kNobody, {}, c.root, shares.at(at), Combine::kCopy};
    add_round(schedule, step);
  }
  return schedule;
}

/// The ranks of a host exchange their shares. The root receives none, since it has all.
Schedule gather_shares(const RootedCluster& c) {
  Circle circle = host_circle(c.hosts(), c.rank, c.hosts().first(c.host));
  Schedule schedule = pairwise_allgather(circle, even_chunks(c.whole, circle.size));
  for (Step& step : schedule) {
    if (step.send_to == c.root) step.send_to = kNobody, step.send = {};
    if (c.rank == c.root) step.recv_from = kNobody, step.recv = {};
  }
  return schedule;
}

// rounds R-1 + H-1 + R-1, bytes n
Schedule make_direct_chain(const Problem& problem) {
  RootedCluster c(problem, problem.counts[0]);
  Schedule schedule = scatter_shares(c);
  LaneLevel level = lanes_between(c.hosts(), c.whole);
  std::vector<Schedule> turns(level.turns);
  for (const Lane& lane : level.of_group[0])
    if (lane.carriers[c.host] == c.rank)
      turns[lane.turn] = chain_broadcast(c.across(lane.carriers), lane.range);
  schedule =
      compose(std::move(schedule), interleaved(turns, static_cast<size_t>(c.hosts().count() - 1)));
  Schedule within = gather_shares(c);
  pad(within, static_cast<size_t>(c.largest - 1));
  return compose(std::move(schedule), within);
}

std::vector<Traffic> direct_chain_traffic(const Problem& problem) {
  RootedCluster c(problem, kPricedElements);
  Rank hosts = c.hosts().count();
  std::vector<Traffic> rounds = linear_scatter_traffic(host_circle(c.hosts(), c.root, c.root),
                                                       1.0 / c.hosts().size_of(c.root_host));
  LaneLevel level = lanes_between(c.hosts(), c.whole);
  for (Rank i = 0; i + 1 < hosts; i++) {
    Rank from = (c.root_host + i) % hosts, to = (from + 1) % hosts;
    size_t first = rounds.size();
    rounds.resize(first + level.turns);
    for (const Lane& lane : level.of_group[0]) {
      double share = static_cast<double>(lane.range.count) / static_cast<double>(c.whole.count);
      rounds[first + lane.turn].messages.push_back({lane.carriers[from], lane.carriers[to], share});
    }
  }
  for (Rank distance = 1; distance < c.largest; distance++) {
    Traffic& round = rounds.emplace_back();
    for (Rank host = 0; host < hosts; host++) {
      Circle circle = c.circle_of(host);
      for (Rank at = 0; at < circle.size && distance < circle.size; at++) {
        Rank to = circle.rank_at(at + distance);
        if (to != c.root) round.messages.push_back({circle.rank_at(at), to, 1.0 / circle.size});
      }
    }
  }
  return rounds;
}

// steps ceil(lg H) + ceil(lg R), bytes n (ceil(lg H)+ceil(lg R))
Schedule make_binomial_binomial(const Problem& problem) {
  RootedCluster c(problem, problem.counts[0]);
  std::vector<Rank> leaders;
  for (Rank h = 0; h < c.hosts().count(); h++)
    leaders.push_back(h == c.root_host ? c.root : c.hosts().first(h));
  Schedule between = binomial_broadcast(c.across(leaders), c.whole);
  if (c.rank != leaders[c.host]) between.assign(between.size(), {});
  Schedule within = binomial_broadcast(host_circle(c.hosts(), c.rank, leaders[c.host]), c.whole);
  pad(within, static_cast<size_t>(ceil_log2(c.largest)));
  return compose(std::move(between), within);
}

}  // namespace

ScheduleRow broadcast_direct_chain() {
  return {.collective = RC_BROADCAST,
          .name = "direct/chain",
          .summary = "each rank of a host passes its share on along the hosts",
          .cost = "steps 2R-1, bytes 2n(R-1)/R+n/R",
          .make = make_direct_chain,
          .traffic = direct_chain_traffic,
          .where = Where::kHosts};
}

ScheduleRow broadcast_binomial_binomial() {
  return {.collective = RC_BROADCAST,
          .name = "binomial/binomial",
          .summary = "down a tree of hosts, then down one in each",
          .cost = "steps ceil(lg H)+ceil(lg R), bytes n(ceil(lg H)+ceil(lg R))",
          .make = make_binomial_binomial,
          .where = Where::kHosts};
}

ScheduleRow reduce_direct_chain() {
  return {
      .collective = RC_REDUCE,
      .name = "direct/chain",
      .summary = "each rank of a host adds its share to what comes along the hosts",
      .cost = "steps 2R-1, bytes n",
      .make = [](const Problem& problem) { return transposed(make_direct_chain(problem)); },
      .traffic = [](const Problem& problem) { return transposed(direct_chain_traffic(problem)); },
      .where = Where::kHosts};
}

ScheduleRow reduce_binomial_binomial() {
  return {
      .collective = RC_REDUCE,
      .name = "binomial/binomial",
      .summary = "up a tree in each host, then up one of hosts",
      .cost = "steps ceil(lg H)+ceil(lg R), bytes n",
      .make = [](const Problem& problem) { return transposed(make_binomial_binomial(problem)); },
      .where = Where::kHosts};
}

}  // namespace ringcoll
