// Tables of float32, driven by plain vectors. For tests.
#pragma once

#include <gtest/gtest.h>

#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "table/shard.h"
#include "table/spec_testing.h"

namespace ringcoll::testing {

using Floats = std::vector<float>;
using Ids = std::vector<int64_t>;

inline std::span<const std::byte> bytes_of(const Floats& values) {
  return std::as_bytes(std::span(values));
}

inline std::vector<std::byte> encoded(const Snapshot& snapshot) {
  std::vector<std::byte> bytes(encoded_bytes(snapshot));
  encode(snapshot, bytes);
  return bytes;
}

struct OwnShard {
  explicit OwnShard(const TableSpec& spec, Range range = {},
                    std::pmr::memory_resource* memory = std::pmr::new_delete_resource())
      : shard(spec, range, memory) {}
  OwnShard(const TableSpec& spec, Range range, const Snapshot& from)
      : shard(spec, range, std::pmr::new_delete_resource(), from) {}

  /// The next push of a client.
  PushOutcome push(int64_t client, int64_t clock, const Ids& ids, const Floats& values,
                   double weight = 1) {
    return shard.push(client, ++number, clock, {ids, RC_FLOAT32, bytes_of(values), weight});
  }
  PushOutcome set_rule(const Rule& rule) { return shard.set_rule(1, ++number, rule); }
  /// Precondition: nothing has to be waited for.
  Floats pull(const Ids& ids) const {
    int64_t elements = 0;
    for (const int64_t id : ids) elements += shard.spec().elements(id);
    Floats out(static_cast<size_t>(elements));
    EXPECT_EQ(shard.pull(std::nullopt, ids, std::as_writable_bytes(std::span(out))), std::nullopt);
    return out;
  }
  std::optional<int64_t> waits_for(int64_t clock) const { return shard.pull(clock, {}, {}); }

  Shard shard;
  int64_t number = 0;
};

}  // namespace ringcoll::testing
