#include "coll/plan_cache.h"

#include <algorithm>
#include <utility>

namespace ringcoll {
namespace {

// How many choices, and how many plans, are kept.
constexpr size_t kMostCallsKept = 1024;

std::vector<Rank> positions_of(const std::vector<Rank>& order) {
  std::vector<Rank> position(order.size());
  for (size_t i = 0; i < order.size(); i++) position[order[i]] = static_cast<Rank>(i);
  return position;
}

Terrain checked(Terrain terrain, const std::vector<Rank>& order) {
  check_algorithm(terrain.algorithm);
  terrain.positions = positions_of(order);
  return terrain;
}

}  // namespace

PlanCache::PlanCache(Rank rank, std::vector<Rank> order, std::vector<bool> lent_to,
                     const CopiedMessages& copied, Terrain terrain)
    : order_(std::move(order)),
      self_(positions_of(order_)[rank]),
      lent_to_(std::move(lent_to)),
      copied_(copied),
      selector_(checked(std::move(terrain), order_)),
      choices_(kMostCallsKept),
      plans_(kMostCallsKept) {}

const Choice& PlanCache::choice(const Call& call, const Partition& partition) {
  key_ = {call.collective, call.dtype, partition.longest_strip(), call.counts.empty()};
  return choices_.get(
      key_, [&] { return selector_.choose(call, partition.longest_strip(), partition.strips()); });
}

Planned& PlanCache::plan(const Call& call, const ScheduleRow& row, const Partition& partition,
                         std::span<const int64_t> counts, SentFrom from, bool pack_all) {
  key_.clear();
  key_.push_back(&row - schedules().data());
  key_.push_back(call.root);
  key_.push_back(static_cast<int64_t>(size_of(call.dtype)));
  auto ends = partition.ends_key() << 2 | static_cast<uint64_t>(from);
  key_.push_back(static_cast<int64_t>(ends << 1 | pack_all));
  key_.insert(key_.end(), counts.begin(), counts.end());
  return plans_.get(key_, [&] { return make(call, row, partition, counts, from, pack_all); });
}

void PlanCache::trim() {
  bool choices = choices_.trim(), plans = plans_.trim();
  trims_ += choices || plans;
}

Planned PlanCache::make(const Call& call, const ScheduleRow& row, const Partition& partition,
                        std::span<const int64_t> counts, SentFrom from, bool pack_all) const {
  auto size = static_cast<Rank>(order_.size());
  Problem problem{.rank = self_,
                  .size = size,
                  .root = position()[call.root],
                  .counts = counts,
                  .levels = selector_.terrain().fabric.levels(),
                  .positions = position()};
  if (call.exchanges()) {
    problem.counts = counts.first(size);
    problem.recv_counts = counts.last(size);
  }
  Schedule schedule = row.make(problem);
  Planned planned;
  for (const Step& step : schedule)
    for (Rank position : {step.send_to, step.recv_from})
      if (position != kNobody) planned.peers.push_back(order_[position]);
  std::ranges::sort(planned.peers);
  planned.peers.erase(std::unique(planned.peers.begin(), planned.peers.end()), planned.peers.end());
  Ends ends = partition.ends_of(counts);
  if (from != SentFrom::kArena) ends.zero_copy = lent_to_;
  auto elements = [&](uint64_t bytes) { return static_cast<int64_t>(bytes / size_of(call.dtype)); };
  if (from == SentFrom::kCopied)
    ends.copying = Ends::Copying{elements(copied_.most), elements(copied_.most_otherwise)};
  planned.plan = lower(schedule, space_of(call.collective, problem), ends, pack_all, self_);
  return planned;
}

}  // namespace ringcoll
