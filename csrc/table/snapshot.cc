// Snapshots as bytes. All numbers are little-endian and have 8 bytes, but for the first two, which
// have 4; nothing is aligned:
//
//   magic, version, bytes             of all
//   bytes of the rule, its JSON
//   bytes of what a custom rule has saved, which follows
//   clock, grace_ended, uses, and the counters
//   how many workers, and for each:   worker, clock
//   how many clients, and for each:   client, number
//   how many pushes, and for each:    worker, clock, type, weight, how many ids, ids, bytes, values
//   how many rows, and for each:      id, pushes, weight, uses, last_use, values, arrays of state
//
// How many bytes a row has follows from the table and the rule.
#include "table/snapshot.h"

#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/copy.h"
#include "base/error.h"
#include "table/guard.h"

namespace ringcoll {
namespace {

static_assert(std::endian::native == std::endian::little, "snapshots are native numbers");

constexpr uint32_t kMagic = 0x0a534352;  // "RCS\n"
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 2 * sizeof(uint32_t) + sizeof(uint64_t);
constexpr size_t kPairBytes = 2 * sizeof(int64_t);
constexpr size_t kLeastPushBytes = 6 * sizeof(int64_t);
constexpr size_t kLeastRowBytes = 5 * sizeof(int64_t);

/// Writes to `out`, or, if that is null, only counts.
class Writer {
 public:
  explicit Writer(std::byte* out) : out_(out) {}
  template <typename T>
  void put(T number) {
    static_assert(std::is_arithmetic_v<T>);
    put_bytes(&number, sizeof number);
  }
  void put_bytes(const void* data, size_t bytes) {
    if (out_ && bytes > 0) copy_bytes(out_ + written_, data, bytes);
    written_ += bytes;
  }
  void put_bytes(std::span<const std::byte> bytes) { put_bytes(bytes.data(), bytes.size()); }
  size_t written() const { return written_; }

 private:
  std::byte* out_;
  size_t written_ = 0;
};

void put_map(Writer& to, const std::map<int64_t, int64_t>& map) {
  to.put(uint64_t{map.size()});
  for (const auto& [key, value] : map) {
    to.put(key);
    to.put(value);
  }
}

void put_text(Writer& to, const std::string& text) {
  to.put(uint64_t{text.size()});
  to.put_bytes(text.data(), text.size());
}

void put_push(Writer& to, const WaitingPush& push) {
  to.put(push.worker);
  to.put(push.clock);
  to.put(static_cast<int64_t>(push.dtype));
  to.put(push.weight);
  to.put(uint64_t{push.ids.size()});
  to.put_bytes(push.ids.data(), push.ids.size() * sizeof(int64_t));
  to.put(uint64_t{push.values.size()});
  to.put_bytes(push.values);
}

void put_row(Writer& to, const SnapshotRow& row, size_t state_slots) {
  to.put(row.id);
  to.put(row.counts.tally.pushes);
  to.put(row.counts.tally.weight);
  to.put(row.counts.uses);
  to.put(row.counts.last_use);
  to.put_bytes(row.values);
  for (size_t i = 0; i < state_slots; i++) to.put_bytes(row.state.at(i));
}

/// What follows the header.
void put_body(Writer& to, const Snapshot& snapshot) {
  put_text(to, snapshot.rule.json());
  put_text(to, snapshot.custom);
  const TableCounters& counters = snapshot.counters;
  for (const int64_t number :
       {snapshot.clock, snapshot.grace_ended, snapshot.uses, counters.nan_values,
        counters.evicted_rows, counters.late_pushes, counters.failed_rows})
    to.put(number);
  put_map(to, snapshot.workers);
  put_map(to, snapshot.numbers);
  to.put(uint64_t{snapshot.waiting.size()});
  for (const WaitingPush& push : snapshot.waiting) put_push(to, push);
  to.put(uint64_t{snapshot.rows.size()});
  for (const SnapshotRow& row : snapshot.rows) put_row(to, row, snapshot.rule.state_slots());
}

/// Reads no byte that is not there. Throws Error(kInvalidArgument).
class Reader {
 public:
  Reader(const TableSpec& spec, std::span<const std::byte> bytes) : spec_(spec), left_(bytes) {}

  template <typename T>
  T take() {
    T number;
    std::memcpy(&number, take_bytes(sizeof number).data(), sizeof number);
    return number;
  }
  std::span<const std::byte> take_bytes(uint64_t bytes) {
    check(bytes <= left_.size(), Code::kInvalidArgument,
          "table {}: a snapshot is damaged: {} bytes are wanted where {} are left", spec_.name,
          bytes, left_.size());
    const auto taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }
  std::string_view take_text() {
    const auto text = take_bytes(take<uint64_t>());
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  /// A number of things, each of which takes at least so many bytes of those that are left.
  size_t take_count(const char* things, size_t bytes_of_each) {
    const auto count = take<uint64_t>();
    check(count <= left_.size() / bytes_of_each, Code::kInvalidArgument,
          "table {}: a snapshot is damaged: {} {} where {} bytes are left", spec_.name, count,
          things, left_.size());
    return count;
  }
  size_t left() const { return left_.size(); }

 private:
  const TableSpec& spec_;
  std::span<const std::byte> left_;
};

void check_header(const TableSpec& spec, std::span<const std::byte> all, Reader& from) {
  check(all.size() >= kHeaderBytes && from.take<uint32_t>() == kMagic, Code::kInvalidArgument,
        "table {}: {} bytes are not a snapshot", spec.name, all.size());
  const auto version = from.take<uint32_t>();
  check(version == kVersion, Code::kInvalidArgument,
        "table {}: a snapshot has version {}, and only version {} is known", spec.name, version,
        kVersion);
  const auto bytes = from.take<uint64_t>();
  check(bytes == all.size(), Code::kInvalidArgument,
        "table {}: a snapshot of {} bytes should have {}", spec.name, all.size(), bytes);
}

std::map<int64_t, int64_t> take_map(const TableSpec& spec, Reader& from, const char* things) {
  std::map<int64_t, int64_t> map;
  for (size_t left = from.take_count(things, kPairBytes); left > 0; left--) {
    const auto key = from.take<int64_t>(), value = from.take<int64_t>();
    check(map.empty() || map.rbegin()->first < key, Code::kInvalidArgument,
          "table {}: a snapshot is damaged: of its {}, {} comes after {}", spec.name, things, key,
          map.empty() ? 0 : map.rbegin()->first);
    map.emplace_hint(map.end(), key, value);
  }
  return map;
}

WaitingPush take_push(const TableSpec& spec, Reader& from) {
  WaitingPush push{.worker = from.take<int64_t>(), .clock = from.take<int64_t>()};
  const auto dtype = from.take<int64_t>();
  check(dtype >= 0 && dtype < RC_DTYPE_COUNT, Code::kInvalidArgument,
        "table {}: a snapshot is damaged: a push has type {}", spec.name, dtype);
  push.dtype = static_cast<DataType>(dtype);
  push.weight = from.take<double>();
  push.ids.resize(from.take_count("ids", sizeof(int64_t)));
  const size_t bytes = push.ids.size() * sizeof(int64_t);
  if (bytes > 0) std::memcpy(push.ids.data(), from.take_bytes(bytes).data(), bytes);
  push.values = from.take_bytes(from.take<uint64_t>());
  return push;
}

SnapshotRow take_row(const TableSpec& spec, Reader& from, size_t state_slots) {
  SnapshotRow row{.id = from.take<int64_t>()};
  check(spec.has_row(row.id), Code::kInvalidArgument,
        "table {}: a snapshot has row {}, which the table does not have", spec.name, row.id);
  row.counts.tally.pushes = from.take<int64_t>();
  row.counts.tally.weight = from.take<double>();
  row.counts.uses = from.take<int64_t>();
  row.counts.last_use = from.take<int64_t>();
  row.values = from.take_bytes(spec.row_bytes(row.id));
  for (size_t i = 0; i < state_slots; i++)
    row.state.at(i) = from.take_bytes(spec.state_bytes(row.id));
  return row;
}

Snapshot take_snapshot(const TableSpec& spec, std::span<const std::byte> bytes) {
  Reader from(spec, bytes);
  check_header(spec, bytes, from);
  Snapshot snapshot;
  snapshot.rule = Rule::parse(from.take_text());
  snapshot.custom = from.take_text();
  TableCounters& counters = snapshot.counters;
  for (int64_t* number :
       {&snapshot.clock, &snapshot.grace_ended, &snapshot.uses, &counters.nan_values,
        &counters.evicted_rows, &counters.late_pushes, &counters.failed_rows})
    *number = from.take<int64_t>();
  snapshot.workers = take_map(spec, from, "workers");
  snapshot.numbers = take_map(spec, from, "clients");
  snapshot.waiting.resize(from.take_count("pushes", kLeastPushBytes));
  for (WaitingPush& push : snapshot.waiting) push = take_push(spec, from);
  snapshot.rows.resize(from.take_count("rows", kLeastRowBytes));
  for (SnapshotRow& row : snapshot.rows) row = take_row(spec, from, snapshot.rule.state_slots());
  check(from.left() == 0, Code::kInvalidArgument,
        "table {}: a snapshot is damaged: it ends {} bytes before its end", spec.name, from.left());
  return snapshot;
}

}  // namespace

size_t encoded_bytes(const Snapshot& snapshot) {
  Writer counter(nullptr);
  put_body(counter, snapshot);
  return kHeaderBytes + counter.written();
}

void encode(const Snapshot& snapshot, std::span<std::byte> out) {
  Writer to(out.data());
  to.put(kMagic);
  to.put(kVersion);
  to.put(uint64_t{out.size()});
  put_body(to, snapshot);
}

Snapshot decode(const TableSpec& spec, std::span<const std::byte> bytes) {
  return with_memory(spec, [&] { return take_snapshot(spec, bytes); });
}

}  // namespace ringcoll
