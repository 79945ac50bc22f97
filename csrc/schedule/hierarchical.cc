// Allreduce over hosts, leaves and spines: reduce-scatter within the nearest groups, allreduce of
// every lane between them, allgather back. Each byte of the vector crosses between hosts once. So
// the links of a host carry 2n(H-1)/H, which is the minimum, and all ranks of the host share that.
//
// Sources: see schedule/lanes.h; for the composition, Sergeev and Del Balso 2018 (Horovod's
// hierarchical allreduce), Patarasuk and Yuan 2009 (the bound).
#include <algorithm>
#include <iterator>
#include <utility>

#include "schedule/families.h"
#include "schedule/lanes.h"

namespace ringcoll {
namespace {

Schedule spread_ring(const Circle& carriers, Range range) {
  return ring_allgather(carriers, even_chunks(range, carriers.size));
}
Schedule spread_pairwise(const Circle& carriers, Range range) {
  return pairwise_allgather(carriers, even_chunks(range, carriers.size));
}

constexpr Spread kRing{spread_ring, true};
constexpr Spread kDirect{spread_pairwise, true};  // each round has another partner on the same host
constexpr Spread kBinomial{binomial_broadcast, false};
constexpr Spread kHalvingDoubling{halving_doubling, false};
constexpr Spread kRecursiveDoubling{recursive_doubling, false};

/// The collectives of each level: `host` within hosts, `further` on each level above. If `across`
/// is not null, it is an allreduce over all hosts at once and replaces the levels above hosts.
struct Composition {
  Spread host;
  Spread further;
  const Spread* across;  // null: each level is reduced in turn
  HostLanes lanes;
};

std::vector<LaneLevel> levels_of(const Problem& problem, const Composition& how, int64_t elements) {
  Range whole = {0, elements};
  if (problem.levels.empty())
    return lanes_of(std::vector{Groups({0}, problem.size)}, whole, how.lanes);
  return how.across ? lanes_of(two_levels(problem), whole, how.lanes)
                    : lanes_of(problem.levels, whole, how.lanes);
}

/// How many levels are reduced on the way up, and completed by allgathers on the way down.
size_t joined_one_by_one(const Composition& how, const std::vector<LaneLevel>& levels) {
  return how.across ? 1 : levels.size();
}
const Spread& spread_on(const Composition& how, size_t level) {
  return level == 0 ? how.host : how.further;
}

Schedule make(const Problem& problem, const Composition& how) {
  auto levels = levels_of(problem, how, problem.counts[0]);
  size_t joined = joined_one_by_one(how, levels);
  auto on = [&](size_t level, const Spread& spread) {
    bool all = level + 1 == levels.size();
    Rank group = all ? 0 : problem.levels[level].of(problem.rank);
    return schedule_of(levels[level], group, problem.rank, spread);
  };
  Schedule schedule;
  for (size_t level = 0; level < joined; level++)
    schedule = compose(std::move(schedule), transposed(on(level, spread_on(how, level))));
  if (joined < levels.size()) schedule = compose(std::move(schedule), on(joined, *how.across));
  for (size_t level = joined; level-- > 0;)
    schedule = compose(std::move(schedule), on(level, spread_on(how, level)));
  return schedule;
}

std::vector<Traffic> traffic(const Problem& problem, const Composition& how) {
  auto levels = levels_of(problem, how, kPricedElements);
  size_t joined = joined_one_by_one(how, levels);
  std::vector<Traffic> all;
  auto add = [&](size_t level, const Spread& spread, bool reduces) {
    auto rounds = traffic_of(levels[level], spread, kPricedElements, reduces);
    std::ranges::move(rounds, std::back_inserter(all));
  };
  for (bool reduces : {true, false})
    for (size_t level = 0; level < joined; level++) add(level, spread_on(how, level), reduces);
  if (joined < levels.size()) add(joined, *how.across, false);
  return all;
}

constexpr Composition kDirectRing{kDirect, kRing, nullptr, HostLanes::kEveryRank};
constexpr Composition kDirectHalving{kDirect, kRing, &kHalvingDoubling, HostLanes::kEveryRank};
constexpr Composition kDirectDoubling{kDirect, kRing, &kRecursiveDoubling, HostLanes::kEveryRank};
constexpr Composition kBinomialDoubling{kBinomial, kRing, &kRecursiveDoubling,
                                        HostLanes::kFirstRank};

template <const Composition& kHow>
ScheduleRow row(std::string_view name, std::string_view summary, std::string_view cost) {
  return {.collective = RC_ALLREDUCE,
          .name = name,
          .summary = summary,
          .cost = cost,
          .make = [](const Problem& problem) { return make(problem, kHow); },
          .traffic = [](const Problem& problem) { return traffic(problem, kHow); },
          .where = Where::kHosts};
}

}  // namespace

ScheduleRow allreduce_direct_ring() {
  return row<kDirectRing>("direct/ring",
                          "each rank of a host takes its share round a ring of hosts",
                          "steps 2(R-1)+2(H-1), bytes 2n(R-1)/R+2n(H-1)/P");
}

ScheduleRow allreduce_direct_halving_doubling() {
  return row<kDirectHalving>("direct/halving_doubling",
                             "each rank of a host halves and doubles its share between hosts",
                             "steps 2(R-1)+2ceil(lg H), "
                             "bytes 2n(R-1)/R+2n/R(1-1/2^floor(lg H))+n/R(ceil(lg H)-floor(lg H))");
}

ScheduleRow allreduce_direct_recursive_doubling() {
  return row<kDirectDoubling>("direct/recursive_doubling",
                              "each rank of a host exchanges its whole share with other hosts",
                              "steps 2(R-1)+2ceil(lg H)-floor(lg H), "
                              "bytes 2n(R-1)/R+n/R ceil(lg H)");
}

ScheduleRow allreduce_binomial_recursive_doubling() {
  return row<kBinomialDoubling>(
      "binomial/recursive_doubling",
      "one rank of each host exchanges whole vectors with the others",
      "steps 2ceil(lg R)+2ceil(lg H)-floor(lg H), bytes n ceil(lg R)+n ceil(lg H)");
}

}  // namespace ringcoll
