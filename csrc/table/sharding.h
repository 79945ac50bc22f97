// Which shard of a table has which rows. It never changes: shards move, and rows do not.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "table/spec.h"

namespace ringcoll {

/// The shard, from 0 to shards - 1, that has the row. Precondition: the table has the row, and
/// shards is above 0.
int64_t shard_of(const TableSpec& spec, int64_t id, int64_t shards);

/// The rows of a shard of a dense table: those for which shard_of() returns it. Stretches differ by
/// at most one row. An empty range if the table is sparse. Precondition: as above.
Range range_of(const TableSpec& spec, int64_t shard, int64_t shards);

/// The indices of the leading axis that the rows of a dense shard are cut from.
Range cut_of(const TableSpec& spec, int64_t shard, int64_t shards);

}  // namespace ringcoll
