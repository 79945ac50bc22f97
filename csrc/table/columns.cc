#include "table/columns.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "base/copy.h"
#include "base/error.h"
#include "table/guard.h"
#include "table/snapshot.h"

namespace ringcoll {
namespace {

/// Takes bytes off the front.
std::span<const std::byte> take(std::span<const std::byte>& left, size_t bytes) {
  check(bytes <= left.size(), Code::kInvalidArgument,
        "a saved shard of a table is too short: {} bytes are missing", bytes - left.size());
  const auto first = left.first(bytes);
  left = left.subspan(bytes);
  return first;
}

RowCounts counts_of(const std::byte* at) {
  std::array<double, kCountsOfRow> numbers{};
  std::memcpy(numbers.data(), at, sizeof numbers);
  for (const double number : numbers)
    check(number >= 0 && number < 0x1p53, Code::kInvalidArgument,
          "a saved shard of a table has a row with the count {}", number);
  return {.tally = {static_cast<int64_t>(numbers[0]), numbers[1]},
          .uses = static_cast<int64_t>(numbers[2]),
          .last_use = static_cast<int64_t>(numbers[3])};
}

}  // namespace

size_t ColumnBytes::all() const {
  return std::accumulate(state.begin(), state.end(), ids + counts + values);
}

ColumnBytes bytes_of_columns(const Shard& shard) {
  const TableSpec& spec = shard.spec();
  ColumnBytes bytes;
  for (const SnapshotRow& row : shard.snapshot().rows) {
    bytes.rows++;
    bytes.ids += spec.is_sparse ? sizeof(int64_t) : 0;
    bytes.counts += kCountsOfRow * sizeof(double);
    bytes.values += row.values.size();
    for (size_t i = 0; i < row.state.size(); i++) bytes.state.at(i) += row.state.at(i).size();
  }
  return bytes;
}

void write_columns(const Shard& shard, std::span<std::byte> out) {
  const Snapshot snapshot = shard.snapshot();
  const ColumnBytes bytes = bytes_of_columns(shard);
  std::byte* ids = out.data();
  std::byte* counts = ids + bytes.ids;
  std::byte* values = counts + bytes.counts;
  std::array<std::byte*, kMostStateSlots> state{};
  std::byte* next = values + bytes.values;
  for (size_t i = 0; i < state.size(); i++) next = (state.at(i) = next) + bytes.state.at(i);
  const auto put = [](std::byte*& to, std::span<const std::byte> from) {
    copy_bytes(to, from.data(), from.size());
    to += from.size();
  };
  for (const SnapshotRow& row : snapshot.rows) {
    if (bytes.ids > 0) put(ids, std::as_bytes(std::span(&row.id, 1)));
    const std::array<double, kCountsOfRow> numbers = {
        static_cast<double>(row.counts.tally.pushes), row.counts.tally.weight,
        static_cast<double>(row.counts.uses), static_cast<double>(row.counts.last_use)};
    put(counts, std::as_bytes(std::span(numbers)));
    put(values, row.values);
    for (size_t i = 0; i < state.size(); i++) put(state.at(i), row.state.at(i));
  }
}

std::unique_ptr<Shard> shard_of_columns(const TableSpec& spec, Range range,
                                        std::pmr::memory_resource* memory, const Rule& rule,
                                        size_t rows, std::span<const std::byte> columns,
                                        std::span<const int64_t> workers) {
  return with_memory(spec, [&] {
    Snapshot snapshot{.rule = rule};
    for (const int64_t worker : workers) snapshot.workers[worker] = 0;
    std::span<const std::byte> left = columns;
    const auto ids = take(left, spec.is_sparse ? rows * sizeof(int64_t) : 0);
    const auto counts = take(left, rows * kCountsOfRow * sizeof(double));
    snapshot.rows.resize(std::min(rows, columns.size()));
    for (size_t i = 0; i < rows; i++) {
      SnapshotRow& row = snapshot.rows[i];
      row.id = range.first + static_cast<int64_t>(i);
      if (spec.is_sparse) std::memcpy(&row.id, ids.data() + i * sizeof row.id, sizeof row.id);
      check(spec.has_row(row.id), Code::kInvalidArgument,
            "table {}: a saved shard has the row {}, which the table does not have", spec.name,
            row.id);
      row.counts = counts_of(counts.data() + i * kCountsOfRow * sizeof(double));
      snapshot.uses = std::max({snapshot.uses, row.counts.uses, row.counts.last_use});
    }
    for (SnapshotRow& row : snapshot.rows) row.values = take(left, spec.row_bytes(row.id));
    for (size_t i = 0; i < rule.state_slots(); i++)
      for (SnapshotRow& row : snapshot.rows) row.state.at(i) = take(left, spec.state_bytes(row.id));
    check(left.empty(), Code::kInvalidArgument,
          "table {}: a saved shard has {} bytes too many for its rows and the rule {}", spec.name,
          left.size(), rule.name());
    return std::make_unique<Shard>(spec, range, memory, snapshot);
  });
}

}  // namespace ringcoll
