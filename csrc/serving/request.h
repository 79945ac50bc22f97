// A request as the server sees that gets it, and as its sender makes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "remote/handle.h"
#include "serving/memory.h"
#include "serving/wire.h"
#include "table/spec.h"

namespace ringcoll::serving {

/// Names a table on lines.
uint64_t key_of(std::string_view uid);

/// What a request consists of. Borrows its parts.
struct Outgoing {
  RequestHead head;  // counts and lengths are filled in by write()
  std::span<const Piece> pieces;
  std::span<const int64_t> ids;         // inside only
  std::span<const std::byte> values;    // inside only
  std::string_view handle, out_handle;  // or empty

  size_t bytes() const;
  /// Writes it to memory of bytes() bytes.
  void write(std::byte* to) const;
};

struct Incoming {
  RequestHead head;
  std::vector<Piece> pieces;
  std::span<const int64_t> ids;
  std::span<const std::byte> values;
  std::shared_ptr<const remote::RegionHandle> source, target;  // of the values; of the rows
  std::shared_ptr<SharedBuffer> buffer;                        // has ids and values; null: the slot

  /// Reads a slot, of which the head has been looked at by nobody. What it says is the sender's,
  /// and may be wrong. Throws Error(kInvalidArgument).
  static Incoming read(const std::byte* slot);
  /// The bytes of ids and values that lie elsewhere.
  size_t bytes_elsewhere() const;
  /// Ids and values have come to `memory`.
  void take(std::shared_ptr<SharedBuffer> memory);
};

/// The bytes of a piece's rows, if their elements have this type.
size_t bytes_of(const TableSpec& spec, int64_t shards, const Piece& piece, DataType dtype);
/// Where a dense shard begins in the whole tensor, in bytes.
size_t offset_of(const TableSpec& spec, int64_t shards, uint32_t shard, DataType dtype);

}  // namespace ringcoll::serving
