// Allgather and reduce-scatter over hosts. The block of a host reaches every other host once.
//
// Sources: see schedule/lanes.h; Traff and Hunold 2020 for allgather by lanes.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "schedule/families.h"
#include "schedule/lanes.h"

namespace ringcoll {
namespace {

struct Cluster : HostView {
  Chunks chunks;
  Circle circle;  // of this host, beginning with its first rank

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

/// The lanes of the hosts' blocks, relative to the beginning of a block. Blocks of equal length
/// share them, so equal hosts need only one set.
class BlockLanes {
 public:
  explicit BlockLanes(const Cluster& c) {
    for (Rank host = 0; host < c.hosts().count(); host++) {
      Range block = c.block(host);
      auto [lanes, fresh] = by_length_.try_emplace(block.count);
      if (fresh) lanes->second = lanes_between(c.hosts(), {0, block.count});
      turns_ = std::max(turns_, lanes->second.turns);
    }
  }
  /// The number of turns of the block with the most.
  size_t turns() const { return turns_; }
  /// Calls visit(lane, range) for each lane of `block` that `rank`, which is on `host`, carries.
  template <typename Visit>
  void for_each(Range block, Rank host, Rank rank, Visit&& visit) const {
    for (const Lane& lane : by_length_.at(block.count).of_group[0])
      if (lane.carriers[host] == rank)
        visit(lane, Range{block.first + lane.range.first, lane.range.count});
  }

 private:
  std::map<int64_t, LaneLevel> by_length_;
  size_t turns_ = 0;
};

/// One step of the ring of lanes: the carriers of a host pass on the block that they received last.
Schedule pass_on(const Cluster& c, const BlockLanes& lanes, Rank step) {
  Rank count = c.hosts().count();
  Rank sent = (c.host - step + count) % count, received = (sent - 1 + count) % count;
  Rank next = (c.host + 1) % count, before = (c.host - 1 + count) % count;
  Schedule schedule(lanes.turns());
  lanes.for_each(c.block(sent), c.host, c.rank, [&](const Lane& lane, Range range) {
    schedule[lane.turn].send_to = lane.carriers[next];
    schedule[lane.turn].send = range;
  });
  lanes.for_each(c.block(received), c.host, c.rank, [&](const Lane& lane, Range range) {
    schedule[lane.turn].recv_from = lane.carriers[before];
    schedule[lane.turn].recv = range;
  });
  return schedule;
}

// steps R-1 + (H-1)R, bytes n(R-1)/P + n(H-1)/P + n(R-1)(H-1)/P
Schedule make_direct_ring(const Problem& problem) {
  Cluster c(problem);
  BlockLanes lanes(c);
  Schedule schedule = pairwise_allgather(c.circle, Chunks(own_counts(c), c.block(c.host).first));
  pad(schedule, c.largest - 1);
  for (Rank step = 0; step + 1 < c.hosts().count(); step++) {
    schedule = compose(std::move(schedule), pass_on(c, lanes, step));
    Rank block = (c.host - step - 1 + c.hosts().count()) % c.hosts().count();
    Schedule within = pairwise_allgather(c.circle, even_chunks(c.block(block), c.circle.size));
    pad(within, c.largest - 1);
    schedule = compose(std::move(schedule), within);
  }
  return schedule;
}

/// If hosts differ in size, the result is as if each had a block of the mean length.
std::vector<Traffic> direct_ring_traffic(const Problem& problem) {
  HostView view(problem);
  Rank hosts = view.hosts().count();
  std::vector<Traffic> phases;
  // Within hosts. Larger hosts have more rounds.
  std::set<Rank> sizes;
  for (Rank h = 0; h < hosts; h++) sizes.insert(view.hosts().size_of(h));
  for (Rank rounds = 0; Rank size : sizes) {
    Traffic& within = phases.emplace_back();
    within.times = int64_t{size - 1 - rounds} * hosts;
    rounds = size - 1;
    for (Rank h = 0; h < hosts; h++)
      if (view.hosts().size_of(h) >= size)
        add_ring(within, view.circle_of(h), 1.0 / hosts / view.hosts().size_of(h), Combine::kCopy);
  }
  LaneLevel level = lanes_between(view.hosts(), {0, kPricedElements});
  size_t first = phases.size();
  phases.resize(first + level.turns, Traffic{{}, hosts - 1});
  for (const Lane& lane : level.of_group[0]) {
    double share = static_cast<double>(lane.range.count) / static_cast<double>(kPricedElements);
    add_ring(phases[first + lane.turn], Circle(0, lane.carriers), share / hosts, Combine::kCopy);
  }
  std::erase_if(phases, [](const Traffic& phase) { return phase.messages.empty(); });
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
          .summary = "up a tree in each host, exchanged among one rank of each, down again",
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
      .summary = "up a tree in each host, halved among one rank of each, down again",
      .cost = "steps at most 3ceil(lg R)+3ceil(lg H)-2floor(lg H), bytes n(P-1)/P",
      .make = [](const Problem& problem) { return transposed(make_binomial_doubling(problem)); },
      .where = Where::kHosts};
}

}  // namespace ringcoll
