// Which shard has which rows.
#include "table/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "table/spec_testing.h"

namespace ringcoll {
namespace {

TableSpec dense(int64_t rows) {
  TableSpec spec = TableSpec::parse(
      R"({"name": "w", "dtype": "int8", "shape": [1], "stretch": 1, "rule": {"rule": "sum"}})");
  spec.shape = {rows};
  return spec;
}

TEST(Sharding, CutsADenseTableIntoStretches) {
  for (int64_t rows = 1; rows <= 40; rows++)
    for (int64_t shards = 1; shards <= 45; shards++) {
      const TableSpec spec = dense(rows);
      int64_t next = 0, least = INT64_MAX, most = 0;
      for (int64_t shard = 0; shard < shards; shard++) {
        const Range range = range_of(spec, shard, shards);
        ASSERT_EQ(range.first, next);
        for (; next < range.end(); next++) ASSERT_EQ(shard_of(spec, next, shards), shard);
        least = std::min(least, range.count);
        most = std::max(most, range.count);
      }
      ASSERT_EQ(next, rows);
      ASSERT_LE(most - least, 1) << rows << " rows, " << shards << " shards";
    }
}

TEST(Sharding, DoesNotOverflow) {
  const int64_t rows = (int64_t{1} << 62) + 12345, shards = (int64_t{1} << 61) + 77;
  const TableSpec spec = dense(rows);
  for (const int64_t shard : {int64_t{0}, shards / 3, shards - 1}) {
    const Range range = range_of(spec, shard, shards);
    EXPECT_TRUE(range.count == 1 || range.count == 2 || range.count == 3);
    EXPECT_EQ(shard_of(spec, range.first, shards), shard);
    EXPECT_EQ(shard_of(spec, range.end() - 1, shards), shard);
  }
  EXPECT_EQ(range_of(spec, shards - 1, shards).end(), rows);
}

TEST(Sharding, SpreadsTheIdsOfASparseTable) {
  const TableSpec spec = testing::sparse(R"({"rule": "sum"})");
  EXPECT_TRUE(range_of(spec, 1, 4).empty());
  for (const int64_t shards : {1, 4, 7, 256}) {
    // Ids as programs have them: one after another, and multiples of a power of two.
    for (const int64_t step : {1, 4096}) {
      std::vector<int64_t> rows(static_cast<size_t>(shards));
      constexpr int64_t kOfEach = 400;
      for (int64_t i = 0; i < kOfEach * shards; i++)
        rows.at(static_cast<size_t>(shard_of(spec, (i - 5) * step, shards)))++;
      EXPECT_GT(std::ranges::min(rows), kOfEach * 3 / 4) << shards;
      EXPECT_LT(std::ranges::max(rows), kOfEach * 5 / 4) << shards;
    }
  }
  EXPECT_LT(shard_of(spec, INT64_MIN, 256), 256);
  EXPECT_GE(shard_of(spec, INT64_MAX, 256), 0);
}

/// Every process, and every later version, must come to these: shards are stored and sent.
TEST(Sharding, StaysAsItIs) {
  const TableSpec spec = testing::sparse(R"({"rule": "sum"})");
  std::vector<int64_t> shards;
  for (const int64_t id : {0, 1, 2, 3, -1, 1000000}) shards.push_back(shard_of(spec, id, 256));
  EXPECT_EQ(shards, (std::vector<int64_t>{0, 229, 138, 240, 123, 86}));
}

}  // namespace
}  // namespace ringcoll
