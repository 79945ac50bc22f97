// A client's request to one server: the part of a call that concerns its shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "remote/agent.h"
#include "rules/rule.h"
#include "serving/buffers.h"
#include "serving/call.h"
#include "serving/request.h"

namespace ringcoll::serving {

/// The bytes of a row of a sparse table, or of the whole tensor of a dense one.
size_t bytes_of_row(const TableSpec& spec, DataType dtype);

/// Small values, ids and rows travel in slots. For others there is shared memory: that of the
/// program for a dense table, and copies in the order of shards for a sparse one.
class Parcel {
 public:
  /// `merging`: what the table's rule does with rows of a push that have the same id, as far as
  /// known. Unless they count one by one, each id is sent once, and each row comes once.
  Parcel(remote::Agent& agent, Buffers& buffers, const TableSpec& spec, int64_t shards, Call& call,
         std::span<const uint32_t> group, rules::Merging merging);
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  /// Points into the parcel and into the call.
  Outgoing& request() { return request_; }
  const std::shared_ptr<SharedBuffer>& values_memory() const { return values_memory_; }
  const std::shared_ptr<SharedBuffer>& out_memory() const { return out_memory_; }
  bool is_merged() const { return is_merged_; }

 private:
  void count(const TableSpec& spec, int64_t shards, const Call& call,
             std::span<const uint32_t> group);
  void gather(const TableSpec& spec, int64_t shards, const Call& call, int64_t* ids,
              std::byte* values);
  /// Adds a row to one with the same id, or puts it in its place.
  void merge(std::byte* values, const std::byte* more, size_t row, DataType dtype) const;
  void put_inside(const TableSpec& spec, int64_t shards, const Call& call);
  void put_outside(remote::Agent& agent, Buffers& buffers, const TableSpec& spec, int64_t shards,
                   Call& call);
  void make_room(remote::Agent& agent, Buffers& buffers, const TableSpec& spec, Call& call);

  Outgoing request_;
  rules::Merging merging_;
  bool is_merged_ = false;
  std::vector<Piece> pieces_;
  std::vector<int64_t> ids_;
  std::vector<std::byte> values_;
  std::string handle_, out_handle_;
  std::shared_ptr<SharedBuffer> values_memory_, out_memory_;
};

/// Copies the rows of a shard, which lie one after another, to where the call wants them. If the
/// parcel was merged, there is one row for each id. Returns what comes after them.
const std::byte* scatter(const TableSpec& spec, int64_t shards, const Call& call, uint32_t shard,
                         const std::byte* rows, bool is_merged);

}  // namespace ringcoll::serving
