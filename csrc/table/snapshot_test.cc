// Snapshots as bytes.
#include "table/snapshot.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/allocations_testing.h"
#include "base/error.h"
#include "base/error_testing.h"
#include "table/shard_testing.h"

namespace ringcoll {
namespace {

using testing::bytes_of;
using testing::encoded;
using testing::error_of;
using testing::Ids;
using testing::OwnShard;

using Bytes = std::vector<std::byte>;

constexpr const char* kAdam = R"({"rule": "adam"})";

/// One worker, two rows and a push that waits.
Bytes small(const TableSpec& spec) {
  OwnShard table(spec);
  table.shard.join(1);
  table.push(1, 0, {-7, 4}, {1, 2, 3, 4});
  table.shard.tick(1, 0);
  table.push(1, 1, {4}, {5, 6});
  return encoded(table.shard.snapshot());
}

/// What is wrong with the bytes, or nothing if a shard may be what they say.
std::string refusal_of(const TableSpec& spec, const Bytes& bytes) {
  // Of the exact length, so that a sanitizer sees each byte that is read behind the end.
  const auto exact = std::make_unique<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  try {
    OwnShard table(spec, {}, decode(spec, {exact.get(), bytes.size()}));
    table.push(1, 1, {4}, {1, 1});
    table.shard.tick(1, table.shard.current_clock());
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    return error.what();
  }
}

TEST(Encoding, KeepsEveryRuleAndType) {
  int tables = 0;
  for (const char* rule : {"sum", "assign", "sgd", "adagrad", "adam", "adamw", "weighted_average"})
    for (int i = 0; i < RC_DTYPE_COUNT; i++) {
      TableSpec spec = testing::sparse(R"({"rule": "sum"})", R"(, "staleness": 0)");
      spec.dtype = static_cast<DataType>(i);
      spec.rule = Rule::parse(fmt::format(R"({{"rule": "{}"}})", rule));
      try {
        spec.rule.check_push(spec.dtype, spec.dtype, 1);
      } catch (const Error&) {
        continue;  // optimizers are for floating-point types
      }
      tables++;
      OwnShard table(spec);
      table.shard.join(1);
      const Bytes values(4 * size_of(spec.dtype), std::byte{1});
      const Ids ids = {9, -5};
      for (int64_t clock = 0; clock < 3; clock++) {
        table.shard.push(1, clock + 1, clock, {ids, spec.dtype, values});
        if (clock < 2) table.shard.tick(1, clock);
      }
      const Bytes bytes = encoded(table.shard.snapshot());
      OwnShard other(spec, {}, decode(spec, bytes));
      EXPECT_EQ(other.shard.digest(), table.shard.digest()) << rule << name_of(spec.dtype);
      EXPECT_EQ(encoded(other.shard.snapshot()), bytes) << rule << name_of(spec.dtype);
    }
  EXPECT_EQ(tables, 2 * RC_DTYPE_COUNT + 5 * 4);
}

TEST(Encoding, OfAnEmptyShard) {
  const TableSpec spec = testing::sparse(kAdam);
  const Bytes bytes = encoded(OwnShard(spec).shard.snapshot());
  EXPECT_EQ(OwnShard(spec, {}, decode(spec, bytes)).shard.digest(), OwnShard(spec).shard.digest());
}

TEST(Encoding, CopiesNoValuesButToTheCallersMemory) {
  TableSpec spec = testing::sparse(kAdam, R"(, "staleness": 0)");
  spec.shape = {1 << 18};
  OwnShard table(spec);
  table.shard.join(1);
  const testing::Floats values(1 << 18, 1);
  table.push(1, 0, {1}, values);
  table.shard.tick(1, 0);
  table.push(1, 1, {1}, values);
  Bytes bytes(encoded_bytes(table.shard.snapshot()));
  EXPECT_GT(bytes.size(), 4 * sizeof(float) << 18);  // value, two arrays of state, and a push
  const testing::LargeAllocations large(100000);
  encode(table.shard.snapshot(), bytes);
  const Snapshot decoded = decode(spec, bytes);
  EXPECT_EQ(large.made(), 0);
  EXPECT_EQ(decoded.rows[0].values.size(), sizeof(float) << 18);
}

TEST(Encoding, AllThatIsCutShortIsRefused) {
  const TableSpec spec = testing::sparse(kAdam, R"(, "staleness": 0)");
  const Bytes bytes = small(spec);
  EXPECT_EQ(refusal_of(spec, bytes), "");
  for (size_t length = 0; length < bytes.size(); length++) {
    Bytes bad(bytes.begin(), bytes.begin() + static_cast<int64_t>(length));
    EXPECT_NE(refusal_of(spec, bad), "") << length;
    // Also if it says so itself.
    if (length < 16) continue;
    const uint64_t all = length;
    std::memcpy(bad.data() + 8, &all, sizeof all);
    EXPECT_NE(refusal_of(spec, bad), "") << length;
  }
  Bytes longer = bytes;
  longer.push_back({});
  EXPECT_NE(refusal_of(spec, longer).find("should have"), std::string::npos);
}

TEST(Encoding, AllThatIsDamagedIsRefusedOrIsAnotherShard) {
  for (const char* fields : {R"(, "staleness": 0)", R"(, "staleness": 0, "max_rows": 2)"}) {
    const TableSpec spec = testing::sparse(kAdam, fields);
    const Bytes bytes = small(spec);
    size_t refused = 0;
    for (size_t i = 0; i < bytes.size(); i++)
      for (const int flip : {0x01, 0x80, 0xff}) {
        Bytes bad = bytes;
        bad[i] ^= static_cast<std::byte>(flip);
        refused += refusal_of(spec, bad).empty() ? 0 : 1;
      }
    EXPECT_GT(refused, bytes.size());  // values, and numbers of clients, may be anything
  }
}

TEST(Encoding, NothingIsAllocatedForALengthThatCannotBe) {
  const TableSpec spec = testing::sparse(kAdam, R"(, "staleness": 0)");
  const Bytes bytes = small(spec);
  const testing::LargeAllocations large(1 << 20);
  int refused = 0;
  for (size_t i = 16; i + 8 <= bytes.size(); i++) {
    Bytes bad = bytes;
    const uint64_t length = uint64_t{1} << 40;
    std::memcpy(bad.data() + i, &length, sizeof length);
    try {
      (void)decode(spec, bad);
    } catch (const Error&) {
      refused++;
    }
  }
  EXPECT_GT(refused, 10);
  EXPECT_EQ(large.made(), 0);
}

TEST(Encoding, SaysWhatIsWrong) {
  const TableSpec spec = testing::sparse(kAdam, R"(, "staleness": 0)");
  const auto says = [&](size_t at, const std::string& wanted) {
    Bytes bad = small(spec);
    bad.at(at) ^= std::byte{1};
    const std::string refusal = refusal_of(spec, bad);
    EXPECT_NE(refusal.find(wanted), std::string::npos) << refusal;
  };
  says(0, "bytes are not a snapshot");
  says(4, "a snapshot has version 0, and only version 1 is known");
  says(8, "a snapshot of");
  says(23, "bytes are wanted where");
  EXPECT_EQ(refusal_of(spec, {}), "table t: 0 bytes are not a snapshot");
}

TEST(Encoding, OfADenseTableNamesOnlyItsRows) {
  const auto dense = [](int64_t rows) {
    return TableSpec::parse(fmt::format(
        R"({{"name": "w", "dtype": "float32", "shape": [{}], "stretch": 1,
             "rule": {{"rule": "sum"}}}})",
        rows));
  };
  const Bytes bytes = encoded(OwnShard(dense(4), {3, 1}).shard.snapshot());
  EXPECT_NO_THROW(OwnShard(dense(4), {3, 1}, decode(dense(4), bytes)));
  EXPECT_STREQ(error_of([&] { (void)decode(dense(3), bytes); }).what(),
               "table w: a snapshot has row 3, which the table does not have");
}

}  // namespace
}  // namespace ringcoll
