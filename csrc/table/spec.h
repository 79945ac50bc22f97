// What a table is: names, types and sizes, the rule of its pushes, and what clients may rely on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "rules/rule.h"
#include "table/initial.h"

namespace ringcoll {

/// Which row a full table gives up for a new one.
enum class Evict : uint8_t {
  kAge,  // the one whose last use is the longest ago, counted in uses of rows
  kUse,  // the one with the fewest uses; of several the one whose last use is the longest ago
};

/// The tensor of a dense table is cut along its leading axis into rows, numbered from 0 on. A
/// sparse table has a row for any int64.
struct TableSpec {
  std::string name;
  DataType dtype = RC_FLOAT32;
  bool is_sparse = false;
  std::vector<int64_t> shape;  // of the tensor or, if it is sparse, of a row
  /// Dense only: how many indices of the leading axis a row has. The last row may have fewer.
  int64_t stretch = 1;
  Rule rule{rules::Sum{}};
  /// How many clocks a worker's pull may lack of the others' pushes. With 0, the pushes of a clock
  /// are applied together when it is complete. Without, pulls never wait.
  std::optional<int64_t> staleness;
  /// After `grace_s`, so many workers complete a clock.
  std::optional<int64_t> quorum;
  double grace_s = 0;
  std::optional<int64_t> max_rows;  // sparse only, of each shard
  Evict evict = Evict::kAge;
  Initial initial;

  /// Reads an object such as {"name": "w", "dtype": "float32", "row_shape": [64], "rule": {"rule":
  /// "sum"}}. The other fields may be left out; "stretch" is then such that a row has about 16,384
  /// elements. Throws Error(kInvalidArgument), which names the field, its value and what it may be.
  static TableSpec parse(std::string_view json);
  /// The object that parse() reads, with all fields.
  std::string json() const;
  bool operator==(const TableSpec&) const = default;

  /// Of a dense table. Its rows have the ids from 0 to one less.
  int64_t row_count() const;
  /// Elements of the row. Only the last row of a dense table has fewer than most_elements().
  int64_t elements(int64_t id) const;
  int64_t most_elements() const;
  /// Sparse tables have all.
  bool has_row(int64_t id) const { return is_sparse || (id >= 0 && id < row_count()); }
  size_t row_bytes(int64_t id) const { return static_cast<size_t>(elements(id)) * size_of(dtype); }
  /// Of one array of state.
  size_t state_bytes(int64_t id) const {
    return static_cast<size_t>(elements(id)) * size_of(Rule::state_dtype(dtype));
  }
};

}  // namespace ringcoll
