#include "serving/parcel.h"

#include <cstring>

#include "base/copy.h"
#include "reduce/reduce.h"

namespace ringcoll::serving {
namespace {

/// Room that a handle of a region needs, at most.
constexpr size_t kHandleRoom = remote::kLongestHandle;

/// Another client may be changing the rule, and shards do not have it at the same moment. Then the
/// servers merge.
constexpr int kMostRefusals = 3;

/// Whether the id at positions[i] is that before it.
bool repeats(const Call& call, std::span<const uint32_t> positions, size_t i) {
  return i > 0 && call.ids()[positions[i]] == call.ids()[positions[i - 1]];
}

size_t repeats_of(const Call& call, uint32_t shard) {
  const auto positions = call.positions(shard);
  size_t count = 0;
  for (size_t i = 0; i < positions.size(); i++) count += repeats(call, positions, i);
  return count;
}

}  // namespace

size_t bytes_of_row(const TableSpec& spec, DataType dtype) {
  int64_t elements = 1;
  for (const int64_t length : spec.shape) elements *= length;
  return static_cast<size_t>(elements) * size_of(dtype);
}

Parcel::Parcel(remote::Agent& agent, Buffers& buffers, const TableSpec& spec, int64_t shards,
               Call& call, std::span<const uint32_t> group, rules::Merging merging)
    : merging_(call.asked().kind == Kind::kAssign ? rules::Merging::kLast : merging) {
  const Asked& asked = call.asked();
  RequestHead& head = request_.head;
  head.kind = asked.kind;
  head.number = call.number();
  head.clock = asked.clock.value_or(0);
  head.weight = asked.weight;
  head.dtype = static_cast<uint8_t>(asked.dtype);
  head.pushes = asked.pushes;
  head.pulls = asked.pulls;
  head.has_clock = asked.clock.has_value();
  is_merged_ =
      call.has_repeats() &&
      (!asked.pushes || (call.refusals < kMostRefusals && merging_ != rules::Merging::kEach));
  if (is_merged_ && asked.kind == Kind::kRows && asked.pushes)
    head.merged = static_cast<uint8_t>(merging_);
  count(spec, shards, call, group);
  request_.pieces = pieces_;
  const size_t inside =
      request_.bytes() + head.ids * sizeof(int64_t) + head.value_bytes + kHandleRoom;
  if (inside <= kSlotBytes)
    put_inside(spec, shards, call);
  else
    put_outside(agent, buffers, spec, shards, call);
  if (head.out_bytes > kReplyBytes) make_room(agent, buffers, spec, call);
}

void Parcel::count(const TableSpec& spec, int64_t shards, const Call& call,
                   std::span<const uint32_t> group) {
  const Asked& asked = call.asked();
  RequestHead& head = request_.head;
  for (const uint32_t shard : group) {
    size_t rows = call.positions(shard).size();
    if (is_merged_) rows -= repeats_of(call, shard);
    const Piece piece{.shard = shard, .rows = static_cast<uint32_t>(rows)};
    pieces_.push_back(piece);
    if (!has_rows(asked.kind)) continue;
    head.ids += piece.rows;
    if (asked.pushes) head.value_bytes += bytes_of(spec, shards, piece, asked.dtype);
    if (asked.pulls) head.out_bytes += bytes_of(spec, shards, piece, spec.dtype);
  }
  if (!has_rows(asked.kind)) head.value_bytes = asked.values.size();
}

void Parcel::gather(const TableSpec& spec, int64_t shards, const Call& call, int64_t* ids,
                    std::byte* values) {
  const Asked& asked = call.asked();
  const std::byte* from = call.values().data();
  if (!has_rows(asked.kind)) {
    if (!call.values().empty()) std::memcpy(values, from, call.values().size());
    return;
  }
  const size_t row = bytes_of_row(spec, asked.dtype);
  for (const Piece& piece : pieces_) {
    if (!spec.is_sparse) {
      if (!asked.pushes) continue;
      const size_t bytes = bytes_of(spec, shards, piece, asked.dtype);
      copy_bytes(values, from + offset_of(spec, shards, piece.shard, asked.dtype), bytes);
      values += bytes;
      continue;
    }
    const auto positions = call.positions(piece.shard);
    for (size_t i = 0; i < positions.size(); i++) {
      const std::byte* value = from + positions[i] * row;
      if (is_merged_ && repeats(call, positions, i)) {
        if (asked.pushes) merge(values - row, value, row, asked.dtype);
        continue;
      }
      *ids++ = call.ids()[positions[i]];
      if (!asked.pushes) continue;
      std::memcpy(values, value, row);
      values += row;
    }
  }
}

void Parcel::merge(std::byte* values, const std::byte* more, size_t row, DataType dtype) const {
  if (merging_ == rules::Merging::kLast)
    std::memcpy(values, more, row);
  else
    combine_kernel(dtype, RC_SUM)(values, values, more, static_cast<int64_t>(row / size_of(dtype)));
}

void Parcel::put_inside(const TableSpec& spec, int64_t shards, const Call& call) {
  ids_.resize(request_.head.ids);
  values_.resize(request_.head.value_bytes);
  gather(spec, shards, call, ids_.data(), values_.data());
  request_.ids = ids_;
  request_.values = values_;
}

void Parcel::put_outside(remote::Agent& agent, Buffers& buffers, const TableSpec& spec,
                         int64_t shards, Call& call) {
  RequestHead& head = request_.head;
  if (spec.is_sparse || !has_rows(call.asked().kind)) {
    const size_t id_bytes = head.ids * sizeof(int64_t);
    values_memory_ = buffers.take(id_bytes + head.value_bytes);
    std::byte* memory = values_memory_->data();
    gather(spec, shards, call, reinterpret_cast<int64_t*>(memory), memory + id_bytes);
    head.where = Where::kPacked;
    handle_ = values_memory_->handle();
  } else {
    const auto values = call.values();
    if (!call.values_region)
      call.values_region = std::make_unique<OpenRegion>(
          agent, const_cast<std::byte*>(values.data()), values.size(), /*writable=*/false);
    head.where = Where::kSpread;
    handle_ = call.values_region->handle();
  }
  request_.handle = handle_;
}

void Parcel::make_room(remote::Agent& agent, Buffers& buffers, const TableSpec& spec, Call& call) {
  if (spec.is_sparse) {
    out_memory_ = buffers.take(request_.head.out_bytes);
    out_handle_ = out_memory_->handle();
  } else {
    const auto out = call.asked().out;
    if (!call.out_region)
      call.out_region =
          std::make_unique<OpenRegion>(agent, out.data(), out.size(), /*writable=*/true);
    request_.head.out_spread = true;
    out_handle_ = call.out_region->handle();
  }
  request_.out_handle = out_handle_;
}

const std::byte* scatter(const TableSpec& spec, int64_t shards, const Call& call, uint32_t shard,
                         const std::byte* rows, bool is_merged) {
  std::byte* out = call.asked().out.data();
  if (!spec.is_sparse) {
    const size_t bytes = bytes_of(spec, shards, {.shard = shard}, spec.dtype);
    copy_bytes(out + offset_of(spec, shards, shard, spec.dtype), rows, bytes);
    return rows + bytes;
  }
  const size_t row = bytes_of_row(spec, spec.dtype);
  const auto positions = call.positions(shard);
  for (size_t i = 0; i < positions.size(); i++) {
    if (is_merged && repeats(call, positions, i)) rows -= row;
    std::memcpy(out + positions[i] * row, rows, row);
    rows += row;
  }
  return rows;
}

}  // namespace ringcoll::serving
