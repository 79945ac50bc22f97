// What a table may be, and what its rows begin with.
#include "table/spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/error_testing.h"
#include "rules/float_environment.h"
#include "table/spec_testing.h"

namespace ringcoll {
namespace {

using testing::error_of;
using testing::sparse;

constexpr const char* kSum = R"({"rule": "sum"})";

TEST(TableSpec, ReadsWhatItPrints) {
  const std::vector<std::string> all = {
      R"({"name": "w", "dtype": "float32", "shape": [], "rule": {"rule": "sum"}})",
      R"({"name": "w", "dtype": "int64", "shape": [7, 3], "stretch": 2, "rule": {"rule": "sum"},
          "initial": {"kind": "constant", "value": -5}})",
      R"({"name": "e", "dtype": "bfloat16", "row_shape": [4, 2], "staleness": 3, "quorum": 2,
          "grace_s": 0.5, "max_rows": 10, "evict": "use",
          "rule": {"rule": "adam", "betas": [0.5, 0.25]},
          "initial": {"kind": "normal", "mean": 0.1, "std": 0.02, "seed": 9223372036854775807}})",
      R"({"name": "e", "dtype": "float64", "row_shape": [1], "rule": {"rule": "sgd", "lr": 1},
          "initial": {"kind": "uniform", "low": -1, "high": 1e-3}})"};
  for (const std::string& json : all) {
    const TableSpec spec = TableSpec::parse(json);
    EXPECT_EQ(TableSpec::parse(spec.json()), spec) << spec.json();
  }
  const TableSpec spec = TableSpec::parse(all[2]);
  EXPECT_EQ(spec.staleness, 3);
  EXPECT_EQ(spec.quorum, 2);
  EXPECT_EQ(spec.grace_s, 0.5);
  EXPECT_EQ(spec.max_rows, 10);
  EXPECT_EQ(spec.evict, Evict::kUse);
  EXPECT_EQ(spec.elements(-9), 8);
}

TEST(TableSpec, PrintsAllFields) {
  EXPECT_EQ(sparse(kSum).json(),
            R"({"name":"t","dtype":"float32","row_shape":[2],"rule":{"rule":"sum"},)"
            R"("staleness":null,"quorum":null,"max_rows":null,"initial":{"kind":"zeros"}})");
}

TEST(TableSpec, CutsADenseTensorIntoRows) {
  const auto parse = [](const std::string& shape) {
    return TableSpec::parse(R"({"name": "w", "dtype": "int8", "rule": {"rule": "sum"}, "shape": )" +
                            shape + "}");
  };
  TableSpec spec = parse(R"([7, 3], "stretch": 2)");
  EXPECT_EQ(spec.row_count(), 4);
  EXPECT_EQ(spec.elements(0), 6);
  EXPECT_EQ(spec.elements(3), 3);
  EXPECT_EQ(spec.most_elements(), 6);
  spec = parse("[1000, 1000]");
  EXPECT_EQ(spec.stretch, 16);
  EXPECT_EQ(spec.row_count(), 63);
  EXPECT_EQ(spec.elements(62), 8000);
  spec = parse("[]");
  EXPECT_EQ(spec.row_count(), 1);
  EXPECT_EQ(spec.elements(0), 1);
  spec = parse("[3]");
  EXPECT_EQ(spec.row_count(), 1);
  EXPECT_EQ(spec.most_elements(), 3);
  EXPECT_EQ(parse("[2, 1000000]").stretch, 1);
}

TEST(TableSpec, ErrorsNameTheFieldItsValueAndWhatItMayBe) {
  const std::string sum = R"(, "rule": {"rule": "sum"})", name = R"({"name": "t", )";
  const std::string dense = name + R"("dtype": "float32", "shape": [4])" + sum;
  const std::string rows = name + R"("dtype": "float32", "row_shape": [4])" + sum;
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"t", "a table is not JSON"},
      {"[]", "a table is []: it must be an object"},
      {dense + R"(, "colour": 1})", R"("colour" is no field of it; its fields are: name, dtype)"},
      {"{}", "name is null: it must be a text of 1 to 255 bytes"},
      {R"({"name": ""})", R"(name is "": it must be)"},
      {name + R"("dtype": "float"})", R"(dtype is "float": it must be one of: uint8, int8,)"},
      {name + R"("dtype": "int8")" + sum + "}", "it must have either a shape"},
      {name + R"("dtype": "int8", "shape": [1], "row_shape": [1])" + sum + "}", "it must have eit"},
      {name + R"("dtype": "int8", "shape": [0])" + sum + "}", "shape is [0]: it must be an array"},
      {name + R"("dtype": "int8", "shape": [1048576, 1048577])" + sum + "}",
       "whose product is at most 1099511627776"},
      {name + R"("dtype": "int8", "row_shape": 4)" + sum + "}", "row_shape is 4: it must be an"},
      {rows + R"(, "stretch": 2})", "stretch is 2: a sparse table has none"},
      {dense + R"(, "stretch": 0})", "stretch is 0: it must be an integer from 1 to"},
      {name + R"("dtype": "int8", "shape": [1]})", "rule is null: it must be an object, such as"},
      {name + R"("dtype": "int8", "shape": [1], "rule": {"rule": "sgd"}})",
       "table t: rule sgd: values are int8: they must be floating-point numbers"},
      {name + R"("dtype": "float32", "shape": [1], "rule": {"rule": "sgd", "lr": -1}})",
       "table t: rule sgd: lr is -1: it must be"},
      {dense + R"(, "staleness": -1})", "staleness is -1: it must be an integer from 0 to"},
      {dense + R"(, "staleness": 1.5})", "staleness is 1.5: it must be an integer"},
      {dense + R"(, "staleness": 18446744073709551615})", "staleness is 18446744073709551615: it"},
      {dense + R"(, "quorum": 2})", "quorum is 2, and staleness is not given: quorum wants a stal"},
      {dense + R"(, "staleness": 0, "quorum": 0})", "quorum is 0: it must be an integer from 1 to"},
      {dense + R"(, "grace_s": 2})", "grace_s is 2, and quorum is not given"},
      {dense + R"(, "staleness": 0, "quorum": 1, "grace_s": -2})", "grace_s is -2: it must be a f"},
      {dense + R"(, "max_rows": 2})", "max_rows is 2: a dense table has none"},
      {rows + R"(, "max_rows": 0})", "max_rows is 0: it must be an integer from 1 to"},
      {rows + R"(, "evict": "age"})", R"(evict is "age", and max_rows is not given)"},
      {rows + R"(, "max_rows": 2, "evict": "lru"})",
       R"(evict is "lru": it must be "age" or "use")"},
      {rows + R"(, "initial": "zeros"})",
       R"(initial is "zeros": it must be an object whose "kind")"},
      {rows + R"(, "initial": {"kind": "ones"}})",
       R"(initial is {"kind":"ones"}: it must be an obj)"},
      {rows + R"(, "initial": {"kind": "zeros", "seed": 1}})", "it must be without seed, which"},
      {rows + R"(, "initial": {"kind": "constant"}})", "value is null: it must be a finite number"},
      {rows + R"(, "initial": {"kind": "uniform", "low": 1, "high": 0}})",
       "such that low is at mo"},
      {rows + R"(, "initial": {"kind": "normal", "mean": 0, "std": -1}})", "std is -1: it must be"},
      {name + R"("dtype": "uint8", "shape": [1], "initial": {"kind": "constant", "value": 256})" +
           sum + "}",
       "such that its numbers are values of uint8"},
      {name + R"("dtype": "int64", "shape": [1], "initial": {"kind": "constant", "value": 0.5})" +
           sum + "}",
       "such that its numbers are values of int64"},
      {dense + R"(, "initial": [[[[1]]]]})", "nested more than 3 deep"},
  };
  for (const auto& [json, wanted] : bad) {
    const Error error = error_of([&] { TableSpec::parse(json); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << json;
    EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos)
        << json << ": " << error.what();
  }
}

// ---- first values

template <typename T>
std::vector<T> filled(const Initial& initial, DataType dtype, int64_t id, int64_t count) {
  const FloatEnvironment environment;
  std::vector<T> row(static_cast<size_t>(count), T{7});
  initial.fill(dtype, id, row.data(), count);
  return row;
}

TEST(Initial, FillsEveryType) {
  const Initial one{.kind = Initial::Kind::kConstant, .first = 1};
  EXPECT_EQ(filled<uint8_t>(one, RC_BOOL, 0, 2), (std::vector<uint8_t>{1, 1}));
  EXPECT_EQ(filled<int16_t>(one, RC_INT16, 0, 2), (std::vector<int16_t>{1, 1}));
  EXPECT_EQ(filled<uint64_t>(one, RC_UINT64, 0, 1), (std::vector<uint64_t>{1}));
  EXPECT_EQ(filled<uint16_t>(one, RC_FLOAT16, 0, 1), (std::vector<uint16_t>{0x3c00}));
  EXPECT_EQ(filled<uint16_t>(one, RC_BFLOAT16, 0, 1), (std::vector<uint16_t>{0x3f80}));
  EXPECT_EQ(filled<double>(one, RC_FLOAT64, 0, 2), (std::vector<double>{1, 1}));
  EXPECT_EQ(filled<float>({}, RC_FLOAT32, 0, 2), (std::vector<float>{0, 0}));
  const Initial most{.kind = Initial::Kind::kConstant, .first = 0x1p63};
  EXPECT_FALSE(most.fits(RC_INT64));
  EXPECT_TRUE(most.fits(RC_UINT64));
}

TEST(Initial, RandomNumbersFollowFromSeedAndId) {
  const Initial uniform{.kind = Initial::Kind::kUniform, .first = -1, .second = 1, .seed = 3};
  const auto row = filled<float>(uniform, RC_FLOAT32, 5, 100);
  EXPECT_EQ(filled<float>(uniform, RC_FLOAT32, 5, 100), row);
  EXPECT_NE(filled<float>(uniform, RC_FLOAT32, 6, 100), row);
  EXPECT_NE(filled<float>(uniform, RC_FLOAT32, -5, 100), row);
  Initial other = uniform;
  other.seed = 4;
  EXPECT_NE(filled<float>(other, RC_FLOAT32, 5, 100), row);
}

/// Mean and standard deviation, to a thousandth, of many rows.
std::pair<double, double> moments(const Initial& initial) {
  double sum = 0, squares = 0;
  constexpr int64_t kRows = 2000, kColumns = 200;
  for (int64_t id = 0; id < kRows; id++)
    for (const double number : filled<double>(initial, RC_FLOAT64, id, kColumns)) {
      sum += number;
      squares += number * number;
    }
  const double mean = sum / (kRows * kColumns);
  return {mean, std::sqrt(squares / (kRows * kColumns) - mean * mean)};
}

TEST(Initial, RandomNumbersHaveTheirDistribution) {
  const Initial uniform{.kind = Initial::Kind::kUniform, .first = 2, .second = 4, .seed = 1};
  auto [mean, deviation] = moments(uniform);
  EXPECT_NEAR(mean, 3, 0.01);
  EXPECT_NEAR(deviation, 2 / std::sqrt(12), 0.01);
  const auto row = filled<double>(uniform, RC_FLOAT64, 0, 10000);
  EXPECT_GE(*std::ranges::min_element(row), 2);
  EXPECT_LE(*std::ranges::max_element(row), 4);
  const Initial normal{.kind = Initial::Kind::kNormal, .first = 3, .second = 0.5, .seed = 1};
  std::tie(mean, deviation) = moments(normal);
  EXPECT_NEAR(mean, 3, 0.01);
  EXPECT_NEAR(deviation, 0.5, 0.01);
  const auto wide = filled<double>(normal, RC_FLOAT64, 0, 10000);
  const auto within = std::ranges::count_if(wide, [](double x) { return std::abs(x - 3) < 1; });
  EXPECT_NEAR(static_cast<double>(within) / 10000, 0.9545, 0.01);  // two deviations
}

/// Every machine must come to these bits: rows that were never pushed are not sent to anybody.
TEST(Initial, RandomNumbersAreTheSameOnEveryMachine) {
  const Initial uniform{.kind = Initial::Kind::kUniform, .first = 0, .second = 1, .seed = 42};
  const Initial normal{.kind = Initial::Kind::kNormal, .first = 0, .second = 1, .seed = 42};
  EXPECT_EQ(filled<double>(uniform, RC_FLOAT64, 7, 2),
            (std::vector<double>{0.5142116190862271, 0.06447472089769268}));
  EXPECT_EQ(filled<double>(normal, RC_FLOAT64, 7, 3),
            (std::vector<double>{0.024188949140281003, 0.6691170176842604, 1.818530343422183}));
}

}  // namespace
}  // namespace ringcoll
