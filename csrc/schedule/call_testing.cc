// The calls that the simulator runs, and the clusters on which it runs them.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "schedule/simulator_testing.h"

namespace ringcoll::simulator {

Rank Call::number_of(Rank position) const {
  if (positions.empty()) return position;
  auto found = std::ranges::find(positions, position);
  return static_cast<Rank>(found - positions.begin());
}

Problem Call::problem(Rank rank) const {
  // Where there is no root, each rank is told another: a schedule that looks at it goes wrong.
  Problem problem = {
      .rank = rank, .size = size, .root = traits_of(collective).has_root ? root : rank};
  if (!counts.empty()) problem.counts = counts.size() == 1 ? counts[0] : counts[rank];
  if (!recv_counts.empty()) problem.recv_counts = recv_counts[rank];
  problem.levels = levels;
  problem.positions = positions;
  return problem;
}

int64_t Call::space(Rank rank) const { return space_of(collective, problem(rank)); }

Ends Call::ends(Rank rank, ZeroCopy zero_copy) const {
  Ends found = ends_of(rank);
  if (zero_copy == ZeroCopy::kNone) return found;
  for (Rank peer = 0; peer < size; peer++)
    found.zero_copy.push_back(zero_copy == ZeroCopy::kAll || peer / 2 != rank / 2);
  return found;
}

Ends Call::ends_of(Rank rank) const {
  const CollectiveTraits& traits = traits_of(collective);
  auto ranges_of = [&](Extent extent, Whose whose) -> std::vector<Range> {
    int64_t whole = space(rank);
    bool uses = is_looked_at(whose, rank == root) || whose == Whose::kAllButRoot;
    if (!uses || extent == Extent::kNone) return {};
    if (extent == Extent::kOwnChunk) return {{offsets_of(counts[0])[rank], counts[0][rank]}};
    if (!traits.exchanges()) return {{0, whole}};
    int64_t sent = offsets_of(counts[rank]).back();
    if (extent == Extent::kReceived) return {{sent, whole - sent}};
    return {{0, sent}};
  };
  Ends ends = {ranges_of(traits.input, traits.reads), ranges_of(traits.output, traits.writes)};
  if (traits.excludes_own() && number_of(rank) == 0) ends.outputs.clear();
  return ends;
}

std::string Call::name() const {
  std::string hosts;
  for (const Groups& level : levels) {
    hosts += hosts.empty() ? ", hosts" : ", leaves";
    for (Rank g = 0; g < level.count(); g++) hosts += fmt::format(" {}", level.size_of(g));
  }
  std::string from = traits_of(collective).has_root ? fmt::format(", root {}", root) : "";
  std::string at = positions.empty() ? "" : fmt::format(", positions {}", positions);
  return fmt::format("{} of {} ranks{}{}{}, counts {}", name_of(collective), size, hosts, from, at,
                     counts.empty() ? std::vector<int64_t>{} : counts[0]);
}

Call make_call(Collective collective, Rank size, Rank root, std::vector<int64_t> counts) {
  Call call = {.collective = collective, .size = size, .root = root};
  if (collective != RC_ALLTOALL) {
    call.counts.push_back(std::move(counts));
    return call;
  }
  call.counts.assign(size, std::vector<int64_t>(size));
  call.recv_counts.assign(size, std::vector<int64_t>(size));
  for (Rank from = 0; from < size; from++)
    for (Rank to = 0; to < size; to++)
      call.counts[from][to] = call.recv_counts[to][from] = counts[(from + to) % size];
  return call;
}

std::vector<Groups> cluster_of(Rank size, Rank ranks, Rank hosts) {
  std::vector<Groups> levels;
  for (Rank length : {ranks, ranks * hosts}) {
    std::vector<Rank> firsts;
    for (Rank first = 0; length > 0 && first < size; first += length) firsts.push_back(first);
    if (length > 0) levels.emplace_back(std::move(firsts), size);
  }
  levels.emplace_back(std::vector<Rank>{0}, size);
  return levels;
}

std::vector<Rank> shuffled_positions(Rank size) {
  std::vector<Rank> positions(size);
  std::iota(positions.begin(), positions.end(), 0);
  std::shuffle(positions.begin(), positions.end(), std::mt19937(static_cast<unsigned>(size)));
  return positions;
}

std::vector<std::vector<Groups>> clusters(const ScheduleRow& row, Rank size) {
  if (row.where != Where::kHosts) return {{}};
  std::vector<Rank> uneven;
  for (Rank first = 0, host = 0; first < size; first += 1 + host++ * 5 % 7) uneven.push_back(first);
  std::vector<std::vector<Groups>> all = {{Groups(uneven, size), Groups({0}, size)},
                                          cluster_of(size, 2, 0),
                                          cluster_of(size, 4, 3),
                                          cluster_of(size, 1, 0),
                                          cluster_of(size, 3, 2),
                                          {}};
  if (size <= 9) return all;
  std::rotate(all.begin(), all.begin() + size % 6, all.end());
  all.resize(2);
  return all;
}

}  // namespace ringcoll::simulator
