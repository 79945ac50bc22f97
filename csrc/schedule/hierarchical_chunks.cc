// Allgather and reduce-scatter over hosts. What a host has goes to every other host once.
//
// Sources: see schedule/lanes.h; Traff and Hunold 2020 for allgather by lanes.
#include <algorithm>
#include <utility>

#include "schedule/families.h"
#include "schedule/lanes.h"

namespace ringcoll {
namespace {

struct Cluster : HostView {
  Chunks chunks;
  Circle circle;  // of the own host, from its first rank on

  explicit Cluster(const Problem& problem)
      : HostView(problem),
        chunks(problem.counts),
        circle(host_circle(hosts(), rank, hosts().first(host))) {}
  Range block(Rank host) const { return chunks.between(hosts().first(host), hosts().end(host)); }
};

std::vector<int64_t> own_counts(const Cluster& c) {
  std::vector<int64_t> counts;
  for (Rank r = c.hosts().first(c.host); r < c.hosts().end(c.host); r++)
    counts.push_back(c.chunks.at(r).count);
  return counts;
}

/// One step of the lanes' ring: the carriers of each host pass on the block that came to them last.
Schedule pass_on(const Cluster& c, const std::vector<LaneLevel>& lanes_of_blocks, Rank step) {
  Rank count = c.hosts().count();
  Rank sent = (c.host - step + count) % count, received = (sent - 1 + count) % count;
  Rank next = (c.host + 1) % count, before = (c.host - 1 + count) % count;
  size_t turns = 0;
  for (const LaneLevel& level : lanes_of_blocks) turns = std::max(turns, level.turns);
  Schedule schedule(turns);
  for (const Lane& lane : lanes_of_blocks[sent].of_group[0])
    if (lane.carriers[c.host] == c.rank) {
      schedule[lane.turn].send_to = lane.carriers[next];
      schedule[lane.turn].send = lane.range;
    }
  for (const Lane& lane : lanes_of_blocks[received].of_group[0])
    if (lane.carriers[c.host] == c.rank) {
      schedule[lane.turn].recv_from = lane.carriers[before];
      schedule[lane.turn].recv = lane.range;
    }
  return schedule;
}

// steps R-1 + (H-1)R, bytes n(R-1)/P + n(H-1)/P + n(R-1)(H-1)/P
Schedule make_direct_ring(const Problem& problem) {
  Cluster c(problem);
  std::vector<LaneLevel> lanes_of_blocks;
  for (Rank h = 0; h < c.hosts().count(); h++)
    lanes_of_blocks.push_back(lanes_of(c.levels, c.block(h), HostLanes::kEveryRank).back());
  Schedule schedule = pairwise_allgather(c.circle, Chunks(own_counts(c), c.block(c.host).first));
  pad(schedule, c.largest - 1);
  for (Rank step = 0; step + 1 < c.hosts().count(); step++) {
    schedule = compose(std::move(schedule), pass_on(c, lanes_of_blocks, step));
    Rank block = (c.host - step - 1 + c.hosts().count()) % c.hosts().count();
    Schedule within = pairwise_allgather(c.circle, even_chunks(c.block(block), c.circle.size));
    pad(within, c.largest - 1);
    schedule = compose(std::move(schedule), within);
  }
  return schedule;
}

/// Rounds alike, if hosts are equal; else nothing.
std::vector<Traffic> direct_ring_traffic(const Problem& problem) {
  std::vector<int64_t> counts(problem.size, 1);
  Problem counted = problem;
  counted.counts = counts;
  Cluster c(counted);
  Rank hosts = c.hosts().count();
  if (c.largest * hosts != problem.size) return {};
  double share = 1.0 / problem.size;
  std::vector<Traffic> phases(2);
  phases[0].times = static_cast<int64_t>(c.largest - 1) * hosts;
  for (Rank h = 0; h < hosts; h++)
    add_ring(phases[0], host_circle(c.hosts(), c.hosts().first(h), c.hosts().first(h)), share,
             Combine::kCopy);
  phases[1].times = hosts - 1;
  for (Rank lane = 0; lane < c.largest; lane++) {
    std::vector<Rank> carriers;
    for (Rank h = 0; h < hosts; h++) carriers.push_back(c.hosts().first(h) + lane);
    add_ring(phases[1], Circle(0, carriers), share, Combine::kCopy);
  }
  return phases;
}

// steps at most 3ceil(lg R) + 3ceil(lg H)-2floor(lg H)
Schedule make_binomial_doubling(const Problem& problem) {
  Cluster c(problem);
  Chunks own(own_counts(c), c.block(c.host).first);
  auto tree_rounds = static_cast<size_t>(ceil_log2(c.largest));
  Schedule schedule = binomial_gather(c.circle, own);
  pad(schedule, tree_rounds);

  std::vector<Rank> leaders;
  std::vector<int64_t> blocks;
  for (Rank h = 0; h < c.hosts().count(); h++) {
    leaders.push_back(c.hosts().first(h));
    blocks.push_back(c.block(h).count);
  }
  bool leads = c.rank == leaders[c.host];
  Schedule between = doubling_allgather(Circle(c.host, leaders), Chunks(blocks));
  schedule = compose(std::move(schedule), leads ? between : Schedule(between.size()));

  Schedule down = binomial_completion(c.circle, own, {0, c.chunks.total()});
  pad(down, 2 * tree_rounds);
  return compose(std::move(schedule), down);
}

}  // namespace

ScheduleRow allgather_direct_ring() {
  return {.collective = RC_ALLGATHER,
          .name = "direct/ring",
          .summary = "each rank of a host takes its share of every block round a ring of hosts",
          .cost = "steps R-1+(H-1)R, bytes n(P-1)/P",
          .make = make_direct_ring,
          .traffic = direct_ring_traffic,
          .where = Where::kHosts};
}

ScheduleRow reduce_scatter_direct_ring() {
  return {
      .collective = RC_REDUCE_SCATTER,
      .name = "direct/ring",
      .summary = "each rank of a host takes its share of every block's sum round a ring of hosts",
      .cost = "steps R-1+(H-1)R, bytes n(P-1)/P",
      .make = [](const Problem& problem) { return transposed(make_direct_ring(problem)); },
      .traffic = [](const Problem& problem) { return transposed(direct_ring_traffic(problem)); },
      .where = Where::kHosts};
}

ScheduleRow allgather_binomial_doubling() {
  return {.collective = RC_ALLGATHER,
          .name = "binomial/doubling",
          .summary = "up a tree in each host, exchanged by one rank of each, down again",
          .cost =
              "steps at most 3ceil(lg R)+3ceil(lg H)-2floor(lg H), "
              "bytes at most n(H-1)/H+2n(ceil(lg H)-floor(lg H))+n ceil(lg R)",
          .make = make_binomial_doubling,
          .where = Where::kHosts};
}

ScheduleRow reduce_scatter_binomial_halving() {
  return {
      .collective = RC_REDUCE_SCATTER,
      .name = "binomial/halving",
      .summary = "up a tree in each host, halved by one rank of each, down again",
      .cost = "steps at most 3ceil(lg R)+3ceil(lg H)-2floor(lg H), bytes n(P-1)/P",
      .make = [](const Problem& problem) { return transposed(make_binomial_doubling(problem)); },
      .where = Where::kHosts};
}

}  // namespace ringcoll
