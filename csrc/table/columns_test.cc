#include "table/columns.h"

#include <gtest/gtest.h>

#include <memory_resource>
#include <vector>

#include "base/error.h"
#include "table/shard_testing.h"
#include "table/sharding.h"

namespace ringcoll {
namespace {

std::pmr::memory_resource* heap() { return std::pmr::new_delete_resource(); }

std::vector<std::byte> columns_of(const Shard& shard) {
  std::vector<std::byte> columns(bytes_of_columns(shard).all());
  write_columns(shard, columns);
  return columns;
}

class Columns : public ::testing::TestWithParam<const char*> {
 protected:
  TableSpec spec(const std::string& where) const {
    return TableSpec::parse(R"({"name": "t", "dtype": "float32", )" + where + R"(, "rule": )" +
                            GetParam() + "}");
  }
};

TEST_P(Columns, AShardOfThemGoesOnAsTheOneBefore) {
  for (const char* where : {R"("row_shape": [3])", R"("shape": [10], "stretch": 3)"}) {
    const TableSpec table = spec(where);
    const Range range = range_of(table, 0, 1);
    Shard before(table, range, heap());
    const std::vector<int64_t> ids = {0, 3, 1, 2};
    const std::vector<float> values(table.is_sparse ? 12 : 10, 0.25F);
    int64_t number = 0;
    const auto push = [&](Shard& shard) {
      shard.push(7, ++number, 0, {ids, RC_FLOAT32, std::as_bytes(std::span(values)), 1});
    };
    for (int i = 0; i < 3; i++) push(before);
    const auto made = shard_of_columns(table, range, heap(), table.rule, before.row_count(),
                                       columns_of(before), {});
    Shard& after = *made;
    EXPECT_EQ(columns_of(after), columns_of(before));
    push(before);
    push(after);
    EXPECT_EQ(columns_of(after), columns_of(before));
  }
}

TEST_P(Columns, OtherLengthsAreRefused) {
  const TableSpec table = spec(R"("row_shape": [3])");
  Shard shard(table, {}, heap());
  const std::vector<int64_t> ids = {5, 9};
  const std::vector<float> values(6, 1);
  shard.push(7, 1, 0, {ids, RC_FLOAT32, std::as_bytes(std::span(values)), 1});
  std::vector<std::byte> columns = columns_of(shard);
  const auto make = [&](size_t rows) {
    return shard_of_columns(table, {}, heap(), table.rule, rows, columns, {});
  };
  EXPECT_EQ(make(2)->row_count(), 2);
  EXPECT_THROW(make(1), Error);
  EXPECT_THROW(make(3), Error);
  EXPECT_THROW(make(SIZE_MAX / 64), Error);
  columns.pop_back();
  EXPECT_THROW(make(2), Error);
}

INSTANTIATE_TEST_SUITE_P(Rules, Columns,
                         ::testing::Values(R"({"rule": "sum"})", R"({"rule": "adam", "lr": 0.1})",
                                           R"({"rule": "sgd", "lr": 0.1, "momentum": 0.9})",
                                           R"({"rule": "weighted_average"})"));

}  // namespace
}  // namespace ringcoll
