// A snapshot of a shard, a shard of a snapshot, and digests, by which two shards are compared.
#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "base/copy.h"
#include "base/error.h"
#include "table/guard.h"
#include "table/shard.h"

namespace ringcoll {
namespace {

/// No count can come so far. What is added to one that is less does not overflow.
constexpr int64_t kNever = int64_t{1} << 62;

bool is_count(int64_t number) { return number >= 0 && number < kNever; }

/// A hash of what is added, in its order. It finds defects, not attackers.
class Digest {
 public:
  void add(uint64_t word) { sum_ = spread(sum_ ^ word) + 0x9e3779b97f4a7c15; }
  void add(const std::byte* data, size_t bytes) {
    add(bytes);
    uint64_t word = 0;
    for (; bytes >= sizeof word; bytes -= sizeof word, data += sizeof word) {
      std::memcpy(&word, data, sizeof word);
      add(word);
    }
    word = 0;
    if (bytes > 0) std::memcpy(&word, data, bytes);
    add(word);
  }
  void add(const WaitingPush& push) {
    add(static_cast<uint64_t>(push.worker));
    add(static_cast<uint64_t>(push.clock));
    add(push.dtype);
    add(std::bit_cast<uint64_t>(push.weight));
    for (const int64_t id : push.ids) add(static_cast<uint64_t>(id));
    add(push.values.data(), push.values.size());
  }
  void add(int64_t id, const RowCounts& counts) {
    for (const int64_t number : {id, counts.uses, counts.last_use, counts.tally.pushes})
      add(static_cast<uint64_t>(number));
    add(std::bit_cast<uint64_t>(counts.tally.weight));
  }
  uint64_t sum() const { return sum_; }

 private:
  uint64_t sum_ = 0;
};

}  // namespace

Snapshot Shard::snapshot() const {
  return with_memory(spec_, [&] {
    Snapshot all{.rule = spec_.rule,
                 .custom = custom_ ? custom_->save() : "",
                 .clock = clocks_.current(),
                 .grace_ended = clocks_.grace_ended(),
                 .workers = clocks_.workers(),
                 .waiting = {waiting_.begin(), waiting_.end()},
                 .numbers = numbers_,
                 .uses = rows_.uses(),
                 .counters = counters()};
    all.rows.reserve(rows_.size());
    rows_.each([&](int64_t id, RowSlot slot) {
      SnapshotRow& row = all.rows.emplace_back();
      row.id = id;
      row.counts = rows_.counts(slot);
      row.values = {rows_.value(slot), spec_.row_bytes(id)};
      for (size_t i = 0; i < spec_.rule.state_slots(); i++)
        row.state.at(i) = {rows_.state(slot, i), spec_.state_bytes(id)};
    });
    std::ranges::sort(all.rows, {}, &SnapshotRow::id);
    return all;
  });
}

// ---- a shard of a snapshot

void Shard::check_row(const SnapshotRow& row, int64_t uses) const {
  const RowCounts& counts = row.counts;
  check(is_count(counts.tally.pushes) && counts.tally.weight >= 0 && is_count(counts.uses) &&
            counts.last_use >= 0 && counts.last_use <= uses,
        Code::kInvalidArgument,
        "table {}: a snapshot has row {} with {} pushes of weight {}, and {} uses, the last one "
        "being number {} of {}",
        spec_.name, row.id, counts.tally.pushes, counts.tally.weight, counts.uses, counts.last_use,
        uses);
  check_bytes({&row.id, 1}, spec_.dtype, row.values.size());
  for (size_t i = 0; i < spec_.rule.state_slots(); i++)
    check_bytes({&row.id, 1}, Rule::state_dtype(spec_.dtype), row.state.at(i).size());
}

void Shard::check_waiting(const Snapshot& from) const {
  check(std::ranges::is_sorted(from.waiting, {}, &WaitingPush::worker) &&
            (from.waiting.empty() || is_synchronous()),
        Code::kInvalidArgument,
        "table {}: a snapshot has {} pushes that wait: only tables with a staleness of 0 have any, "
        "and they are in the order of workers",
        spec_.name, from.waiting.size());
  std::map<int64_t, DataType> types;  // of clocks
  for (const WaitingPush& push : from.waiting) {
    check(push.clock >= from.clock && push.clock < kNever, Code::kInvalidArgument,
          "table {}: a snapshot at clock {} has a push that waits for clock {}", spec_.name,
          from.clock, push.clock);
    check(types.try_emplace(push.clock, push.dtype).first->second == push.dtype,
          Code::kInvalidArgument, "table {}: a snapshot has pushes of several types for clock {}",
          spec_.name, push.clock);
    check_ids(push.ids);
    spec_.rule.check_push(spec_.dtype, push.dtype, push.weight);
    check_bytes(push.ids, push.dtype, push.values.size());
  }
}

void Shard::check_snapshot(const Snapshot& from, Range range) const {
  const bool begun =
      std::ranges::all_of(from.workers, is_count, [](auto& one) { return one.second; });
  check(begun && is_count(from.clock) && from.grace_ended >= -1 && from.grace_ended <= from.clock,
        Code::kInvalidArgument, "table {}: a snapshot has clocks that cannot be", spec_.name);
  const TableCounters& all = from.counters;
  check(is_count(from.uses) && is_count(all.nan_values) && is_count(all.evicted_rows) &&
            is_count(all.late_pushes) && is_count(all.failed_rows),
        Code::kInvalidArgument, "table {}: a snapshot has counters that cannot be", spec_.name);
  check(std::ranges::adjacent_find(from.rows, std::greater_equal(), &SnapshotRow::id) ==
            from.rows.end(),
        Code::kInvalidArgument, "table {}: the ids of a snapshot do not ascend", spec_.name);
  const auto rows = static_cast<int64_t>(from.rows.size());
  const bool fits = spec_.is_sparse ? rows <= spec_.max_rows.value_or(rows) : rows == range.count;
  check(fits, Code::kInvalidArgument, "table {}: a snapshot has {} rows: a shard has {} {}",
        spec_.name, rows, spec_.is_sparse ? "at most" : "all",
        spec_.max_rows.value_or(range.count));
  for (const SnapshotRow& row : from.rows) {
    check_ids({&row.id, 1});
    check_row(row, from.uses);
  }
  check_waiting(from);
}

/// Precondition: there are no rows yet, and check_snapshot() was called.
void Shard::restore(const Snapshot& from) {
  clocks_.restore(from.workers, from.clock, from.grace_ended);
  if (spec_.is_sparse) rows_.reserve(from.rows.size());
  for (const SnapshotRow& row : from.rows) {
    const Row made = rows_.insert(row.id, row.counts);
    copy_bytes(made.value, row.values.data(), row.values.size());
    for (size_t i = 0; i < spec_.rule.state_slots(); i++)
      copy_bytes(made.state.at(i), row.state.at(i).data(), row.state.at(i).size());
  }
  rows_.set_uses(from.uses);
  for (const WaitingPush& push : from.waiting)
    keep(push.worker, push.clock, {push.ids, push.dtype, push.values, push.weight});
  numbers_ = from.numbers;
  counters_ = from.counters;
}

uint64_t Shard::digest() const {
  uint64_t of_rows = 0;  // a sum, since rows may lie in another order
  rows_.each([&](int64_t id, RowSlot slot) {
    Digest row;
    row.add(id, rows_.counts(slot));
    row.add(rows_.value(slot), spec_.row_bytes(id));
    for (size_t i = 0; i < spec_.rule.state_slots(); i++)
      row.add(rows_.state(slot, i), spec_.state_bytes(id));
    of_rows += row.sum();
  });
  Digest all;
  for (const uint64_t word : {of_rows, uint64_t{rows_.size()}, uint64_t(rows_.uses()),
                              uint64_t(clocks_.current()), uint64_t(clocks_.grace_ended())})
    all.add(word);
  const std::string rule = spec_.rule.json();
  all.add(reinterpret_cast<const std::byte*>(rule.data()), rule.size());
  for (const auto& [worker, clock] : clocks_.workers()) {
    all.add(static_cast<uint64_t>(worker));
    all.add(static_cast<uint64_t>(clock));
  }
  for (const auto& [client, number] : numbers_) {
    all.add(static_cast<uint64_t>(client));
    all.add(static_cast<uint64_t>(number));
  }
  for (const WaitingPush& push : waiting_) all.add(push);
  return all.sum();
}

}  // namespace ringcoll
