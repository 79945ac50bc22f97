#include "serving/call.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "table/initial.h"
#include "table/sharding.h"

namespace ringcoll::serving {

Call::Call(const TableSpec& spec, int64_t count, const Asked& asked, int64_t number, Done done)
    : asked_(asked),
      number_(number),
      done_(std::move(done)),
      ids_(asked.ids.begin(), asked.ids.end()) {
  const size_t all = static_cast<size_t>(count);
  if (!has_rows(asked.kind) || !spec.is_sparse) {
    shards.assign(all, State::kUnsent);
    return;
  }
  sort_by_shard(spec, count);
  shards.assign(all, State::kNone);
  for (uint32_t shard = 0; shard < all; shard++)
    if (!positions(shard).empty()) shards[shard] = State::kUnsent;
}

void Call::sort_by_shard(const TableSpec& spec, int64_t count) {
  std::vector<uint16_t> shard_of_id(ids_.size());
  first_.assign(static_cast<size_t>(count) + 1, 0);
  for (size_t i = 0; i < ids_.size(); i++) {
    shard_of_id[i] = static_cast<uint16_t>(shard_of(spec, ids_[i], count));
    first_[shard_of_id[i] + 1U]++;
  }
  for (size_t shard = 1; shard < first_.size(); shard++) first_[shard] += first_[shard - 1];
  std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
  order_.resize(ids_.size());
  for (size_t i = 0; i < ids_.size(); i++)
    order_[next[shard_of_id[i]]++] = static_cast<uint32_t>(i);
  join_repeats();
}

void Call::join_repeats() {
  constexpr uint32_t kNone = UINT32_MAX;
  const size_t mask = std::bit_ceil(2 * ids_.size() + 1) - 1;
  std::vector<uint32_t> first_of(mask + 1, kNone);  // a hash table: where an id occurs first
  std::vector<uint32_t> next(ids_.size(), kNone), last(ids_.size(), kNone);
  for (uint32_t i = 0; i < ids_.size(); i++) {
    size_t at = spread(static_cast<uint64_t>(ids_[i])) & mask;
    while (first_of[at] != kNone && ids_[first_of[at]] != ids_[i]) at = (at + 1) & mask;
    const uint32_t first = first_of[at];
    if (first == kNone) {
      first_of[at] = last[i] = i;
    } else {
      last[first] = next[last[first]] = i;
      has_repeats_ = true;
    }
  }
  if (!has_repeats_) return;
  std::vector<uint32_t> joined;
  joined.reserve(order_.size());
  for (const uint32_t position : order_) {
    if (last[position] == kNone) continue;  // it is not the first of its id
    for (uint32_t each = position; each != kNone; each = next[each]) joined.push_back(each);
  }
  order_ = std::move(joined);
}

std::span<const uint32_t> Call::positions(uint32_t shard) const {
  if (first_.empty()) return {};
  return {order_.data() + first_[shard], first_[shard + 1U] - first_[shard]};
}

bool Call::is_complete() const {
  return std::ranges::all_of(
      shards, [](State state) { return state == State::kNone || state == State::kDone; });
}

bool Call::has_unsent() const { return std::ranges::count(shards, State::kUnsent) > 0; }

void Call::end() {
  values_region.reset();
  out_region.reset();
  has_ended = true;
}

void Call::tell() {
  if (done_) done_(*this);
}

}  // namespace ringcoll::serving
