#include "table/sharding.h"

#include <algorithm>

#include "table/initial.h"

namespace ringcoll {
namespace {

using Wide = unsigned __int128;  // the product of two int64

/// The quotient, rounded down.
int64_t times_over(int64_t left, int64_t right, int64_t divisor) {
  return static_cast<int64_t>(static_cast<Wide>(left) * static_cast<Wide>(right) /
                              static_cast<Wide>(divisor));
}

}  // namespace

Range range_of(const TableSpec& spec, int64_t shard, int64_t shards) {
  if (spec.is_sparse) return {};
  const int64_t rows = spec.row_count();
  const int64_t first = times_over(rows, shard, shards);
  return {.first = first, .count = times_over(rows, shard + 1, shards) - first};
}

Range cut_of(const TableSpec& spec, int64_t shard, int64_t shards) {
  const Range rows = range_of(spec, shard, shards);
  const int64_t length = spec.shape.empty() ? 1 : spec.shape.front();
  const int64_t first = std::min(rows.first * spec.stretch, length);
  return {.first = first, .count = std::min(rows.end() * spec.stretch, length) - first};
}

int64_t shard_of(const TableSpec& spec, int64_t id, int64_t shards) {
  if (spec.is_sparse)
    return static_cast<int64_t>(spread(static_cast<uint64_t>(id)) % static_cast<uint64_t>(shards));
  // The last shard whose first row, rows * shard / shards rounded down, is at most this one:
  // rows * shard < (id + 1) * shards.
  const Wide end = (static_cast<Wide>(id) + 1) * static_cast<Wide>(shards);
  return static_cast<int64_t>((end - 1) / static_cast<Wide>(spec.row_count()));
}

}  // namespace ringcoll
