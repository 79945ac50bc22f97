// A call of a program on a table: what it asks for, and how far it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "serving/memory.h"
#include "serving/wire.h"
#include "table/spec.h"

namespace ringcoll::serving {

/// What a program asks for. Ids are copied; values, rows and text are borrowed until the call has
/// ended.
struct Asked {
  Kind kind = Kind::kRows;       // or kTick, kJoin, kRule, kAssign
  std::span<const int64_t> ids;  // of a sparse table
  bool pushes = false;           // so does kAssign
  DataType dtype = RC_FLOAT32;
  std::span<const std::byte> values;  // of the push, or the rule's JSON
  double weight = 1;
  bool pulls = false;
  std::span<std::byte> out;
  std::optional<int64_t> clock;  // of a worker
  bool is_attended = false;      // whoever starts it waits for it at once
};

/// Its fields belong to the Client, whose lock guards them.
class Call {
 public:
  using Done = std::function<void(const Call&)>;

  Call(const TableSpec& spec, int64_t shards, const Asked& asked, int64_t number, Done done);

  const Asked& asked() const { return asked_; }
  int64_t number() const { return number_; }
  /// The ids of a shard, as positions in those of the call: equal ids one after another, in their
  /// order. Empty for a dense table.
  std::span<const uint32_t> positions(uint32_t shard) const;
  /// Whether some id occurs more than once.
  bool has_repeats() const { return has_repeats_; }
  std::span<const int64_t> ids() const { return ids_; }
  std::span<const std::byte> values() const { return asked_.values; }

  enum class State : uint8_t { kNone, kUnsent, kSent, kDone };
  std::vector<State> shards;  // kNone: the call has nothing for it
  int64_t clock = 0;          // the latest that a server has told
  std::optional<Error> error;
  bool has_ended = false;
  /// Regions of the program's own memory, for a dense table.
  std::unique_ptr<OpenRegion> values_region, out_region;
  /// A server that was lost may still write to the region: it must not be used again.
  bool region_is_old = false;
  /// How often a server has refused a request of it, since its rule merges pushes otherwise.
  int refusals = 0;

  /// Whether it does more than pull.
  bool changes() const { return asked_.pushes || !has_rows(asked_.kind); }
  /// Whether all shards are done.
  bool is_complete() const;
  /// Whether some shard is to be sent.
  bool has_unsent() const;
  /// It has ended, with `error` or without. tell() is to be called later, without the lock.
  void end();
  /// Nobody waits for it any more.
  void leave_unattended() { asked_.is_attended = false; }
  void tell();

 private:
  void sort_by_shard(const TableSpec& spec, int64_t count);
  void join_repeats();

  Asked asked_;
  const int64_t number_;
  Done done_;
  std::vector<int64_t> ids_;
  std::vector<uint32_t> order_;  // positions of ids, by shard
  std::vector<uint32_t> first_;  // in order_, of each shard; and the end
  bool has_repeats_ = false;
};

}  // namespace ringcoll::serving
