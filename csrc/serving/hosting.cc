#include "serving/hosting.h"

#include <algorithm>
#include <memory_resource>
#include <numeric>

#include "base/error.h"
#include "table/columns.h"
#include "table/sharding.h"

namespace ringcoll::serving {
namespace {

std::pmr::memory_resource* heap() { return std::pmr::new_delete_resource(); }

DataType dtype_of(const RequestHead& head) {
  check(head.dtype < RC_DTYPE_COUNT, Code::kInvalidArgument, "{} is no type of elements",
        head.dtype);
  return static_cast<DataType>(head.dtype);
}

/// Takes the first bytes off.
template <typename T>
std::span<T> take(std::span<T>& left, size_t count, const char* what) {
  check(count <= left.size(), Code::kInvalidArgument, "a request has too few {}: {} are missing",
        what, count - left.size());
  const auto first = left.first(count);
  left = left.subspan(count);
  return first;
}

}  // namespace

bool Hosting::lacks(const std::string& uid, const TableSpec& spec, uint32_t shard, int64_t shards) {
  check(shards > 0 && static_cast<size_t>(shards) <= kMostShards && shard < shards,
        Code::kInvalidArgument, "table {}: shard {} of {}: a table has 1 to {}", spec.name, shard,
        shards, kMostShards);
  const uint64_t key = key_of(uid);
  const HostedTable* there = find(key);
  if (!there) return true;
  check(there->uid == uid && there->shards == shards, Code::kInvalidArgument,
        "table {}: it is {} in {} shards, and is to be {} in {}", spec.name, there->uid,
        there->shards, uid, shards);
  return !there->here.contains(shard);
}

void Hosting::put(const std::string& uid, const TableSpec& spec, uint32_t shard, int64_t shards,
                  std::unique_ptr<Shard> made) {
  const uint64_t key = key_of(uid);
  const auto found = tables_.try_emplace(
      key, HostedTable{.uid = uid, .key = key, .spec = spec, .shards = shards, .here = {}});
  found.first->second.here.try_emplace(shard, std::move(made));
}

void Hosting::host(const std::string& uid, const TableSpec& spec, uint32_t shard, int64_t shards,
                   std::span<const int64_t> workers) {
  if (!lacks(uid, spec, shard, shards)) return;
  auto made = std::make_unique<Shard>(spec, range_of(spec, shard, shards), heap());
  for (const int64_t worker : workers) made->join(worker);
  put(uid, spec, shard, shards, std::move(made));
}

void Hosting::host_saved(const std::string& uid, const TableSpec& spec, uint32_t shard,
                         int64_t shards, std::span<const int64_t> workers,
                         const SavedShard& saved) {
  if (!lacks(uid, spec, shard, shards)) return;
  auto made = shard_of_columns(spec, range_of(spec, shard, shards), heap(), saved.rule, saved.rows,
                               saved.columns, workers);
  put(uid, spec, shard, shards, std::move(made));
}

void Hosting::unhost(const std::string& uid, uint32_t shard) {
  const auto found = tables_.find(key_of(uid));
  if (found == tables_.end()) return;
  found->second.here.erase(shard);
  if (found->second.here.empty()) tables_.erase(found);
}

HostedTable* Hosting::find(uint64_t key) {
  const auto found = tables_.find(key);
  return found == tables_.end() ? nullptr : &found->second;
}

Hosted* Hosting::find(uint64_t key, uint32_t shard) {
  HostedTable* table = find(key);
  if (!table) return nullptr;
  const auto found = table->here.find(shard);
  return found == table->here.end() ? nullptr : &found->second;
}

HostedTable& Hosting::get(const std::string& uid) {
  HostedTable* table = find(key_of(uid));
  check(table != nullptr, Code::kInvalidArgument, "no shard of table {} is here", uid);
  return *table;
}

Hosted& Hosting::get(const std::string& uid, uint32_t shard) {
  Hosted* hosted = find(key_of(uid), shard);
  check(hosted != nullptr, Code::kInvalidArgument, "shard {} of table {} is not here", shard, uid);
  return *hosted;
}

bool Hosting::leads(const Incoming& request, bool may_be_replaced) {
  return std::ranges::all_of(request.pieces, [&](const Piece& piece) {
    const Hosted* hosted = find(request.head.table, piece.shard);
    return hosted && hosted->is_led(may_be_replaced);
  });
}

uint8_t Hosting::other_merging(const Incoming& request) {
  if (request.head.merged == kUnmerged) return kUnmerged;
  for (const Piece& piece : request.pieces) {
    const Rule& rule = find(request.head.table, piece.shard)->shard->spec().rule;
    const auto merging = static_cast<uint8_t>(rule.combine());
    if (merging != request.head.merged) return merging;
  }
  return kUnmerged;
}

bool Hosting::waits(const Incoming& request) {
  if (!request.head.pulls || !request.head.has_clock) return false;
  return std::ranges::any_of(request.pieces, [&](const Piece& piece) {
    const Hosted* hosted = find(request.head.table, piece.shard);
    return hosted->shard->clocks().waits_for(request.head.clock).has_value();
  });
}

std::span<const int64_t> Hosting::ids_of(const HostedTable& table, const Piece& piece,
                                         std::span<const int64_t>& left) {
  if (table.spec.is_sparse) return take(left, piece.rows, "ids");
  const Range range = range_of(table.spec, piece.shard, table.shards);
  dense_ids_.resize(static_cast<size_t>(range.count));
  std::iota(dense_ids_.begin(), dense_ids_.end(), range.first);
  return dense_ids_;
}

Hosting::Changed Hosting::change(const Incoming& request, std::span<const uint32_t> without) {
  HostedTable& table = *find(request.head.table);
  std::span<const int64_t> ids_left = request.ids;
  std::span<const std::byte> values_left = request.values;
  Changed changed;
  const auto note = [&](const Error& error) {
    if (!changed.error) changed.error = error;
  };
  for (const Piece& piece : request.pieces) {
    try {
      std::span<const int64_t> ids;
      std::span<const std::byte> values = request.values;
      if (has_rows(request.head.kind)) {
        const DataType dtype = dtype_of(request.head);
        ids = ids_of(table, piece, ids_left);
        values = take(values_left, bytes_of(table.spec, table.shards, piece, dtype), "values");
      }
      if (std::ranges::count(without, piece.shard) > 0) continue;
      Hosted& hosted = table.here.at(piece.shard);
      change_shard(table, hosted, request, ids, values);
      changed.done.push_back(piece.shard);
      changed.clock = std::max(changed.clock, hosted.shard->current_clock());
    } catch (const RuleFailed& error) {
      note(error);
      changed.failed.push_back(piece.shard);
    } catch (const Error& error) {
      note(error);
    }
  }
  return changed;
}

void Hosting::change_rows(const HostedTable& table, Hosted& hosted, const RequestHead& head,
                          const PushedRows& rows) {
  if (table.spec.is_sparse)
    for (const int64_t id : rows.ids)
      check(
          &hosted == find(table.key,
                          static_cast<uint32_t>(ringcoll::shard_of(table.spec, id, table.shards))),
          Code::kInvalidArgument, "table {}: row {} belongs to another shard", table.spec.name, id);
  if (head.kind == Kind::kAssign)
    hosted.shard->assign(head.client, head.number, rows);
  else
    hosted.shard->push(head.client, head.number, head.clock, rows);
  hosted.pushes++;
  hosted.pushed_bytes += rows.values.size();
}

void Hosting::change_shard(const HostedTable& table, Hosted& hosted, const Incoming& request,
                           std::span<const int64_t> ids, std::span<const std::byte> values) {
  const RequestHead& head = request.head;
  Shard& shard = *hosted.shard;
  const auto text = [&] {
    return std::string_view(reinterpret_cast<const char*>(values.data()), values.size());
  };
  switch (head.kind) {
    case Kind::kRows:
    case Kind::kAssign:
      return change_rows(table, hosted, head,
                         {ids, static_cast<DataType>(head.dtype), values, head.weight});
    case Kind::kTick:
      return shard.tick(head.client, head.clock);
    case Kind::kJoin:
      return shard.join(head.client, head.clock);
    case Kind::kLeave:
      return shard.leave(head.client);
    case Kind::kEnd:
      shard.leave(head.client);
      return shard.forget(head.client);
    case Kind::kGrace:
      return shard.end_grace(head.clock);
    case Kind::kRule:
      shard.set_rule(head.client, head.number, Rule::parse(text()));
      return;
    case Kind::kInstall:
      break;
  }
  throw Error(Code::kInvalidArgument, fmt::format("table {}: a request of the unknown kind {}",
                                                  table.spec.name, static_cast<int>(head.kind)));
}

void Hosting::copy_rows(const Incoming& request, std::span<std::byte> out) {
  HostedTable& table = *find(request.head.table);
  std::span<const int64_t> ids_left = request.ids;
  std::span<std::byte> left = out;
  for (const Piece& piece : request.pieces) {
    Hosted& hosted = table.here.at(piece.shard);
    const auto ids = ids_of(table, piece, ids_left);
    const size_t bytes = bytes_of(table.spec, table.shards, piece, table.spec.dtype);
    // That no clock has to be waited for was seen before.
    const auto waits = hosted.shard->pull(std::nullopt, ids, take(left, bytes, "bytes for rows"));
    invariant(!waits, "a pull without a clock waits");
    hosted.pulls++;
    hosted.pulled_bytes += bytes;
  }
  check(left.empty(), Code::kInvalidArgument, "table {}: a pull wants {} bytes too many",
        table.spec.name, left.size());
}

size_t Hosting::bytes_of_rows(const Incoming& request) {
  const HostedTable& table = *find(request.head.table);
  size_t bytes = 0;
  for (const Piece& piece : request.pieces)
    bytes += bytes_of(table.spec, table.shards, piece, table.spec.dtype);
  check(bytes == request.head.out_bytes, Code::kInvalidArgument,
        "table {}: a pull of {} bytes wants {}", table.spec.name, bytes, request.head.out_bytes);
  return bytes;
}

std::vector<std::span<const std::byte>> Hosting::places_of_rows(const Incoming& request) {
  HostedTable& table = *find(request.head.table);
  std::vector<std::span<const std::byte>> places;
  if (table.spec.is_sparse) return places;
  for (const Piece& piece : request.pieces) {
    Hosted& hosted = table.here.at(piece.shard);
    const Range range = range_of(table.spec, piece.shard, table.shards);
    for (int64_t id = range.first; id < range.end(); id++) {
      const std::byte* row = hosted.shard->find(id);
      const size_t bytes = table.spec.row_bytes(id);
      if (!places.empty() && places.back().data() + places.back().size() == row)
        places.back() = {places.back().data(), places.back().size() + bytes};
      else
        places.emplace_back(row, bytes);
    }
    hosted.pulls++;
    hosted.pulled_bytes += bytes_of(table.spec, table.shards, piece, table.spec.dtype);
  }
  return places;
}

void Hosting::install(const Incoming& request) {
  HostedTable& table = *find(request.head.table);
  const Piece& piece = request.pieces.front();
  Hosted& hosted = table.here.at(piece.shard);
  const Range range = range_of(table.spec, piece.shard, table.shards);
  const Snapshot snapshot = decode(table.spec, request.values);
  hosted.shard = std::make_unique<Shard>(table.spec, range, heap(), snapshot);
  hosted.role = Role::kFollows;
  hosted.epoch = std::max(hosted.epoch, piece.epoch);
  hosted.installed = piece.epoch;
  hosted.backups.clear();
  hosted.grace.reset();
}

}  // namespace ringcoll::serving
