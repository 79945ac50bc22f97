#include "serving/request.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "table/initial.h"
#include "table/sharding.h"

namespace ringcoll::serving {
namespace {

std::byte* put(std::byte* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return to + bytes;
}

}  // namespace

uint64_t key_of(std::string_view uid) {
  uint64_t key = uid.size();
  for (const char c : uid) key = spread(key + static_cast<unsigned char>(c) + 0x9e3779b97f4a7c15);
  return key;
}

size_t Outgoing::bytes() const {
  return sizeof head + pieces.size_bytes() + ids.size_bytes() + values.size() + handle.size() +
         out_handle.size();
}

void Outgoing::write(std::byte* to) const {
  RequestHead full = head;
  full.pieces = static_cast<uint32_t>(pieces.size());
  full.handle_bytes = static_cast<uint32_t>(handle.size());
  full.out_handle_bytes = static_cast<uint32_t>(out_handle.size());
  to = put(to, &full, sizeof full);
  to = put(to, pieces.data(), pieces.size_bytes());
  to = put(to, ids.data(), ids.size_bytes());
  to = put(to, values.data(), values.size());
  to = put(to, handle.data(), handle.size());
  put(to, out_handle.data(), out_handle.size());
}

Incoming Incoming::read(const std::byte* slot) {
  Incoming request;
  RequestHead& head = request.head;
  std::memcpy(&head, slot, sizeof head);
  const std::byte* at = slot + sizeof head;
  size_t left = kSlotBytes - sizeof head;
  const auto take = [&](uint64_t bytes) {
    check(bytes <= left, Code::kInvalidArgument,
          "a request for a table says that it has {} bytes, where {} are left in its slot", bytes,
          left);
    left -= bytes;
    return std::exchange(at, at + bytes);
  };
  const auto handle = [&](uint32_t bytes) -> std::shared_ptr<const remote::RegionHandle> {
    if (bytes == 0) return nullptr;
    const auto* text = reinterpret_cast<const char*>(take(bytes));
    return std::make_shared<remote::RegionHandle>(remote::decode({text, bytes}));
  };
  request.pieces.resize(std::min<size_t>(head.pieces, left));
  const std::byte* pieces = take(uint64_t{head.pieces} * sizeof(Piece));
  if (head.pieces > 0) std::memcpy(request.pieces.data(), pieces, head.pieces * sizeof(Piece));
  if (head.where == Where::kInside) {
    const auto* ids = reinterpret_cast<const int64_t*>(take(uint64_t{head.ids} * sizeof(int64_t)));
    request.ids = {ids, head.ids};
    request.values = {take(head.value_bytes), head.value_bytes};
  }
  request.source = handle(head.handle_bytes);
  request.target = handle(head.out_handle_bytes);
  check(head.where == Where::kInside || request.source, Code::kInvalidArgument,
        "a request for a table says that its values lie elsewhere, and not where");
  const auto rows = [](size_t sum, const Piece& piece) { return sum + piece.rows; };
  check(head.ids == 0 || std::accumulate(request.pieces.begin(), request.pieces.end(), size_t{0},
                                         rows) == head.ids,
        Code::kInvalidArgument, "a request for a table has {} ids for another number of rows",
        head.ids);
  return request;
}

size_t Incoming::bytes_elsewhere() const {
  if (head.where == Where::kInside) return 0;
  return (head.where == Where::kPacked ? head.ids * sizeof(int64_t) : 0) + head.value_bytes;
}

void Incoming::take(std::shared_ptr<SharedBuffer> memory) {
  const size_t id_bytes = head.where == Where::kPacked ? head.ids * sizeof(int64_t) : 0;
  ids = {reinterpret_cast<const int64_t*>(memory->data()), id_bytes / sizeof(int64_t)};
  values = {memory->data() + id_bytes, head.value_bytes};
  buffer = std::move(memory);
}

size_t bytes_of(const TableSpec& spec, int64_t shards, const Piece& piece, DataType dtype) {
  const auto elements = [&]() -> int64_t {
    if (spec.is_sparse) return piece.rows * spec.most_elements();
    const Range range = range_of(spec, piece.shard, shards);
    if (range.empty()) return 0;
    return (range.count - 1) * spec.most_elements() + spec.elements(range.end() - 1);
  };
  return static_cast<size_t>(elements()) * size_of(dtype);
}

size_t offset_of(const TableSpec& spec, int64_t shards, uint32_t shard, DataType dtype) {
  const Range range = range_of(spec, shard, shards);
  return static_cast<size_t>(range.first * spec.most_elements()) * size_of(dtype);
}

}  // namespace ringcoll::serving
