#include "table/rows.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "rules/float_environment.h"

namespace ringcoll {
namespace {

constexpr size_t kSlabBytes = size_t{1} << 20;
constexpr size_t kAlignment = 64;

size_t bytes_of(int64_t elements, DataType dtype) {
  return static_cast<size_t>(elements) * size_of(dtype);
}

/// For a vector that is to grow by push_back(): as reserve(), but its capacity at least doubles.
template <typename T>
void reserve_to_grow(std::vector<T>& vector, size_t size) {
  if (size > vector.capacity()) vector.reserve(std::max(size, 2 * vector.capacity()));
}

}  // namespace

Rows::Rows(const TableSpec& spec, Range range, std::pmr::memory_resource* memory)
    : spec_(spec),
      range_(range),
      memory_(memory),
      row_bytes_(bytes_of(spec.most_elements(), spec.dtype)),
      state_bytes_(bytes_of(spec.most_elements(), Rule::state_dtype(spec.dtype))),
      slab_rows_(spec.is_sparse ? std::max<size_t>(1, kSlabBytes / row_bytes_)
                                : static_cast<size_t>(std::max<int64_t>(1, range.count))) {
  if (spec.is_sparse || range.empty()) return;
  slots_.reserve(slab_rows_);
  slabs_.reserve(1);
  add_slab();
}

Rows::~Rows() {
  for (const Slab& slab : slabs_)
    memory_->deallocate(slab.values, slab_rows_ * row_bytes_, kAlignment);
}

void Rows::make_all() {
  if (spec_.is_sparse) return;
  const FloatEnvironment environment;
  for (int64_t id = range_.first; id < range_.end(); id++) make(id);
}

Row Rows::insert(int64_t id, const RowCounts& counts) {
  const RowSlot slot = add_row(id);
  slots_[slot].counts = counts;
  if (evicts()) heap_insert(slot);
  return row(slot);
}

std::optional<RowSlot> Rows::find(int64_t id) const {
  if (spec_.is_sparse) return index_.find(id);
  if (id < range_.first || id >= range_.end()) return std::nullopt;
  return static_cast<RowSlot>(id - range_.first);
}

const std::byte* Rows::value(RowSlot slot) const {
  return slabs_[slot / slab_rows_].values + slot % slab_rows_ * row_bytes_;
}

const std::byte* Rows::state(RowSlot slot, size_t state) const {
  return slabs_[slot / slab_rows_].state.at(state).get() + slot % slab_rows_ * state_bytes_;
}

Row Rows::row(RowSlot slot) {
  Slab& slab = slabs_[slot / slab_rows_];
  const size_t place = slot % slab_rows_;
  Row row{.value = slab.values + place * row_bytes_,
          .count = spec_.elements(slots_[slot].id),
          .tally = &slots_[slot].counts.tally};
  for (size_t i = 0; i < spec_.rule.state_slots(); i++)
    row.state.at(i) = slab.state.at(i).get() + place * state_bytes_;
  return row;
}

/// Arrays of state for the rows of one slab.
Rows::State Rows::new_state(const Rule& rule) const {
  State state;
  for (size_t i = 0; i < rule.state_slots(); i++)
    state.at(i) = std::make_unique_for_overwrite<std::byte[]>(slab_rows_ * state_bytes_);
  return state;
}

void Rows::begin_state(const Rule& rule) {
  std::vector<State> fresh(slabs_.size());
  for (State& state : fresh) state = new_state(rule);
  // From here on nothing throws.
  const FloatEnvironment environment;
  for (RowSlot slot = 0; slot < slots_.size(); slot++) {
    if (!slots_[slot].used) continue;
    slots_[slot].counts.tally = {};
    const State& state = fresh[slot / slab_rows_];
    for (size_t i = 0; i < rule.state_slots(); i++)
      rule.begin_state(spec_.dtype, state.at(i).get() + slot % slab_rows_ * state_bytes_,
                       spec_.elements(slots_[slot].id));
  }
  for (size_t i = 0; i < slabs_.size(); i++) slabs_[i].state = std::move(fresh[i]);
}

/// Precondition: slabs_ has the capacity.
void Rows::add_slab() {
  Slab slab{.state = new_state(spec_.rule)};
  slab.values = static_cast<std::byte*>(memory_->allocate(slab_rows_ * row_bytes_, kAlignment));
  slabs_.push_back(std::move(slab));
}

void Rows::reserve(size_t new_rows) {
  if (new_rows == 0) return;
  size_t rows = size() + new_rows;
  if (evicts()) rows = std::min(rows, std::max(size(), static_cast<size_t>(*spec_.max_rows)));
  check(rows < kNowhere, Code::kInvalidArgument, "table {}: a shard of {} rows is too large",
        spec_.name, rows);
  reserve_to_grow(slots_, rows);
  reserve_to_grow(free_, slots_.capacity());
  reserve_to_grow(slabs_, (rows + slab_rows_ - 1) / slab_rows_);
  index_.reserve(rows);
  if (evicts()) {
    reserve_to_grow(heap_, rows);
    reserve_to_grow(held_, rows);
  }
  while (slots_of_slabs() < rows) add_slab();
}

RowSlot Rows::add_row(int64_t id) {
  RowSlot slot;
  if (free_.empty()) {
    slot = static_cast<RowSlot>(slots_.size());
    slots_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  slots_[slot] = {.id = id, .used = true};
  if (spec_.is_sparse) index_.insert(id, slot);
  return slot;
}

RowSlot Rows::make(int64_t id) {
  const RowSlot slot = add_row(id);
  const Row made = row(slot);
  spec_.initial.fill(spec_.dtype, id, made.value, made.count);
  for (size_t i = 0; i < spec_.rule.state_slots(); i++)
    spec_.rule.begin_state(spec_.dtype, made.state.at(i), made.count);
  return slot;
}

void Rows::hold(int64_t id) {
  if (!evicts()) return;
  const auto slot = find(id);
  if (!slot || slots_[*slot].heap_place == kNowhere) return;
  heap_erase(*slot);
  held_.push_back(*slot);
}

void Rows::make_room() {
  if (!evicts() || size() < static_cast<size_t>(*spec_.max_rows)) return;
  if (heap_.empty()) end_step();  // the step has more rows than the table may have
  erase(heap_.front());
  evicted_++;
}

RowSlot Rows::use(int64_t id) {
  auto slot = find(id);
  if (!slot) {
    make_room();
    slot = make(id);
    if (evicts()) held_.push_back(*slot);
  }
  touch(*slot);
  return *slot;
}

void Rows::end_step() {
  for (const RowSlot slot : held_) heap_insert(slot);
  held_.clear();
}

void Rows::touch(RowSlot slot) {
  RowCounts& counts = slots_[slot].counts;
  counts.uses++;
  counts.last_use = ++uses_;
  if (slots_[slot].heap_place != kNowhere) heap_restore(slots_[slot].heap_place);
}

void Rows::erase(RowSlot slot) {
  if (slots_[slot].heap_place != kNowhere) heap_erase(slot);
  index_.erase(slots_[slot].id);
  slots_[slot] = {};
  free_.push_back(slot);
}

// ---- the heap, which is binary, and whose rows know their places

std::tuple<int64_t, int64_t, int64_t> Rows::key_of(RowSlot slot) const {
  const RowCounts& counts = slots_[slot].counts;
  return {spec_.evict == Evict::kUse ? counts.uses : 0, counts.last_use, slots_[slot].id};
}

bool Rows::goes_before(RowSlot left, RowSlot right) const { return key_of(left) < key_of(right); }

void Rows::heap_set(size_t place, RowSlot slot) {
  heap_[place] = slot;
  slots_[slot].heap_place = static_cast<uint32_t>(place);
}

void Rows::heap_insert(RowSlot slot) {
  heap_.push_back(slot);
  heap_set(heap_.size() - 1, slot);
  heap_restore(heap_.size() - 1);
}

void Rows::heap_erase(RowSlot slot) {
  const size_t place = slots_[slot].heap_place;
  const RowSlot last = heap_.back();
  heap_.pop_back();
  slots_[slot].heap_place = kNowhere;
  if (last == slot) return;
  heap_set(place, last);
  heap_restore(place);
}

/// Moves the row at this place, whose key has changed, up or down.
void Rows::heap_restore(size_t place) {
  const RowSlot slot = heap_[place];
  while (place > 0 && goes_before(slot, heap_[(place - 1) / 2])) {
    heap_set(place, heap_[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  while (2 * place + 1 < heap_.size()) {
    size_t below = 2 * place + 1;
    if (below + 1 < heap_.size() && goes_before(heap_[below + 1], heap_[below])) below++;
    if (!goes_before(heap_[below], slot)) break;
    heap_set(place, heap_[below]);
    place = below;
  }
  heap_set(place, slot);
}

}  // namespace ringcoll
