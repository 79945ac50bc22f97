// What a shard consists of: for its replicas, for its next server, and for files.
//
// A snapshot is a view. Values of rows and of pushes are not copied, but lie where the snapshot was
// made from: in a shard, until that changes, or in the bytes of decode().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "rules/rule.h"
#include "table/rows.h"
#include "table/spec.h"

namespace ringcoll {

struct SnapshotRow {
  int64_t id = 0;
  RowCounts counts;
  std::span<const std::byte> values;
  std::array<std::span<const std::byte>, kMostStateSlots> state;  // those that the rule has
};

/// A push that waits for its clock to be complete.
struct WaitingPush {
  int64_t worker = 0;
  int64_t clock = 0;
  DataType dtype = RC_FLOAT32;
  double weight = 1;
  std::vector<int64_t> ids;
  std::span<const std::byte> values;  // of the rows of the ids, one after another
};

/// What happened so far.
struct TableCounters {
  int64_t nan_values = 0;    // elements of pushes that were NaN
  int64_t evicted_rows = 0;  // given up for other rows
  int64_t late_pushes = 0;   // not applied, since their clock was complete without them
  int64_t failed_rows = 0;   // not updated, since the custom rule has thrown
  bool operator==(const TableCounters&) const = default;
};

struct Snapshot {
  std::vector<SnapshotRow> rows;  // in ascending order of ids
  Rule rule{rules::Sum{}};
  std::string custom;                  // what a custom rule has saved
  int64_t clock = 0;                   // the first that is not complete
  int64_t grace_ended = -1;            // the last clock whose grace has passed
  std::map<int64_t, int64_t> workers;  // and the clock of each
  std::vector<WaitingPush> waiting;    // of workers in ascending order
  std::map<int64_t, int64_t> numbers;  // client -> the number of its last push
  int64_t uses = 0;                    // of rows
  TableCounters counters;
};

/// How many bytes encode() writes.
size_t encoded_bytes(const Snapshot& snapshot);
/// Writes the snapshot, and copies the values meanwhile. Equal shards give equal bytes.
/// Precondition: `out` has encoded_bytes().
void encode(const Snapshot& snapshot, std::span<std::byte> out);
/// Reads what encode() has written for a table of this description, and points into `bytes`. Throws
/// Error(kInvalidArgument) if they are damaged or cut short, or have another version, and
/// Error(kRefused) if memory is lacking; it takes at most a small multiple of their number. It
/// checks the form of the bytes alone. Whether a shard can be such is checked when one is made of
/// the snapshot (Shard), and whether a bit of a value has flipped is left to the caller.
Snapshot decode(const TableSpec& spec, std::span<const std::byte> bytes);

}  // namespace ringcoll
