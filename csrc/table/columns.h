// The rows of a shard as arrays, for files: ids, counts, values and state, each of all rows in
// ascending order of ids. What belongs to a running job alone is left out: clocks, workers, pushes
// that wait, and the numbers of pushes. A shard that is made of columns begins at clock 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>

#include "table/shard.h"
#include "table/spec.h"

namespace ringcoll {

/// Numbers of a row, as many as kCountsOfRow: pushes and the sum of their weights (RowTally), uses,
/// and the last use (RowCounts).
inline constexpr size_t kCountsOfRow = 4;

/// Lengths of arrays, in bytes.
struct ColumnBytes {
  size_t rows = 0;
  size_t ids = 0;     // int64; 0 for a dense table
  size_t counts = 0;  // float64, kCountsOfRow a row
  size_t values = 0;
  std::array<size_t, kMostStateSlots> state{};  // float64 for float64 values, else float32

  size_t all() const;
};

ColumnBytes bytes_of_columns(const Shard& shard);
/// Writes the arrays, one after another. Precondition: `out` has bytes_of_columns().all(). Throws
/// Error(kRefused) if memory is lacking.
void write_columns(const Shard& shard, std::span<std::byte> out);
/// The shard with these rows, workers at clock 0, and this rule. Throws Error(kInvalidArgument) if
/// no shard of this table and range has such rows, Error(kRefused) if memory is lacking.
std::unique_ptr<Shard> shard_of_columns(const TableSpec& spec, Range range,
                                        std::pmr::memory_resource* memory, const Rule& rule,
                                        size_t rows, std::span<const std::byte> columns,
                                        std::span<const int64_t> workers);

}  // namespace ringcoll
