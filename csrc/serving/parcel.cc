#include "serving/parcel.h"

#include <cstring>

#include "base/copy.h"

namespace ringcoll::serving {
namespace {

/// Room that a handle of a region needs, at most.
constexpr size_t kHandleRoom = remote::kLongestHandle;

}  // namespace

size_t bytes_of_row(const TableSpec& spec, DataType dtype) {
  int64_t elements = 1;
  for (const int64_t length : spec.shape) elements *= length;
  return static_cast<size_t>(elements) * size_of(dtype);
}

Parcel::Parcel(remote::Agent& agent, Buffers& buffers, const TableSpec& spec, int64_t shards,
               Call& call, std::span<const uint32_t> group) {
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
    const Piece piece{.shard = shard, .rows = static_cast<uint32_t>(call.positions(shard).size())};
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
    for (const uint32_t position : call.positions(piece.shard)) {
      *ids++ = call.ids()[position];
      if (!asked.pushes) continue;
      std::memcpy(values, from + position * row, row);
      values += row;
    }
  }
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
                         const std::byte* rows) {
  std::byte* out = call.asked().out.data();
  if (!spec.is_sparse) {
    const size_t bytes = bytes_of(spec, shards, {.shard = shard}, spec.dtype);
    copy_bytes(out + offset_of(spec, shards, shard, spec.dtype), rows, bytes);
    return rows + bytes;
  }
  const size_t row = bytes_of_row(spec, spec.dtype);
  for (const uint32_t position : call.positions(shard)) {
    std::memcpy(out + position * row, rows, row);
    rows += row;
  }
  return rows;
}

}  // namespace ringcoll::serving
