// The rows of a shard: where they lie, and which one makes room for another.
//
// Values lie in slabs, in memory that the caller provides, and never move, so a peer may be told
// where they are. State and counts of rows lie beside, in memory of the heap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <tuple>
#include <vector>

#include "base/types.h"
#include "rules/rule.h"
#include "table/id_index.h"
#include "table/spec.h"

namespace ringcoll {

/// What is counted for a row.
struct RowCounts {
  RowTally tally;        // of the rule
  int64_t uses = 0;      // since it was made
  int64_t last_use = 0;  // the number of all uses of rows of the shard at its last one
  bool operator==(const RowCounts&) const = default;
};

class Rows {
 public:
  /// There are no rows yet. Of a dense table, memory for all rows with an id in the range is
  /// provided; of a sparse one the range means nothing. `spec` and `memory` must outlive it. Throws
  /// std::bad_alloc, or what `memory` throws.
  Rows(const TableSpec& spec, Range range, std::pmr::memory_resource* memory);
  ~Rows();
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  /// Makes all rows of a dense table, with their first values. Of a sparse one it makes none.
  void make_all();
  /// Makes a row that has these counts already. The caller fills values and state. Precondition:
  /// the row is not there, and the rows of a dense table are inserted in the order of the range;
  /// for a sparse one reserve() was called, and the table is not full.
  Row insert(int64_t id, const RowCounts& counts);

  size_t size() const {
    return spec_.is_sparse ? index_.size() : static_cast<size_t>(range_.count);
  }
  std::optional<RowSlot> find(int64_t id) const;
  /// With pointers to value and state of a row that is there.
  Row row(RowSlot slot);
  const std::byte* value(RowSlot slot) const;
  /// An array of state. Precondition: state < Rule::state_slots().
  const std::byte* state(RowSlot slot, size_t state) const;
  RowCounts& counts(RowSlot slot) { return slots_[slot].counts; }
  const RowCounts& counts(RowSlot slot) const { return slots_[slot].counts; }
  /// Calls visit(id, slot) for each row, in no particular order.
  template <typename Visit>
  void each(Visit&& visit) const {
    for (RowSlot slot = 0; slot < slots_.size(); slot++)
      if (slots_[slot].used) visit(slots_[slot].id, slot);
  }

  /// State and tallies of all rows become those of new rows by this rule. The caller then makes it
  /// the rule of the table before it calls anything else. If memory is lacking, no row has changed,
  /// and std::bad_alloc is thrown.
  void begin_state(const Rule& rule);

  // ---- a step: the use of some rows together. None of them is given up for another one of them,
  // unless max_rows is less than their number.

  /// Provides the memory for a step with so many new rows, so that what follows throws nothing. If
  /// memory is lacking, no row has changed, and what `memory` throws, or std::bad_alloc, is thrown.
  void reserve(size_t new_rows);
  /// Keeps the row, if it is there, from being given up in this step.
  void hold(int64_t id);
  /// Finds or makes the row, and counts a use. Precondition: reserve() and hold() were called.
  RowSlot use(int64_t id);
  void end_step();

  /// Counts a use of a row that is there, outside of a step.
  void touch(RowSlot slot);

  /// Uses of rows so far.
  int64_t uses() const { return uses_; }
  /// For rows that were inserted: how many uses had been counted when they had these counts.
  void set_uses(int64_t uses) { uses_ = uses; }
  /// Rows that were given up for others.
  int64_t evicted() const { return evicted_; }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  struct SlotOf {
    int64_t id = 0;
    RowCounts counts;
    uint32_t heap_place = kNowhere;
    bool used = false;
  };
  using State = std::array<std::unique_ptr<std::byte[]>, kMostStateSlots>;
  struct Slab {
    std::byte* values = nullptr;
    State state;
  };

  bool evicts() const { return spec_.max_rows.has_value(); }
  size_t slots_of_slabs() const { return slabs_.size() * slab_rows_; }
  State new_state(const Rule& rule) const;
  void add_slab();
  /// Without values and state.
  RowSlot add_row(int64_t id);
  RowSlot make(int64_t id);
  void make_room();
  void erase(RowSlot slot);
  // The heap of rows that may be given up; the first of them at the top.
  std::tuple<int64_t, int64_t, int64_t> key_of(RowSlot slot) const;
  bool goes_before(RowSlot left, RowSlot right) const;
  void heap_insert(RowSlot slot);
  void heap_erase(RowSlot slot);
  void heap_restore(size_t place);
  void heap_set(size_t place, RowSlot slot);

  const TableSpec& spec_;
  Range range_;
  std::pmr::memory_resource* memory_;
  size_t row_bytes_;    // from a row to the next one in a slab
  size_t state_bytes_;  // the same for an array of state
  size_t slab_rows_;
  std::vector<Slab> slabs_;
  std::vector<SlotOf> slots_;  // those that have been used
  std::vector<RowSlot> free_;  // of slots_
  IdIndex index_;              // sparse only
  std::vector<RowSlot> heap_;
  std::vector<RowSlot> held_;  // left out of the heap until the step ends
  int64_t uses_ = 0;
  int64_t evicted_ = 0;
};

}  // namespace ringcoll
