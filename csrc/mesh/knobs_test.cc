// Knobs that ranks have alike, and those that they may have of their own: each row of the table.
#include "transport/knobs.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/knobs_testing.h"
#include "mesh/ranks_testing.h"

namespace ringcoll {
namespace {

using testing::another_value;
using testing::environment_of;

/// Three ranks, of which the one in the middle has its own `value` of a knob.
std::vector<Config> with_one_other(const KnobRow& row, const std::string& value) {
  std::map<std::string, std::string> variables = {
      {"RINGCOLL_TRANSPORT", "tcp"}, {"RINGCOLL_INTERFACE", "lo"}, {"RINGCOLL_ARENA_BYTES", "1M"}};
  Config usual = read_config(environment_of(variables));
  variables[row.name] = value;
  Config other = read_config(environment_of(variables));
  return {usual, other, usual};
}

std::vector<KnobRow> rows_that_are(Agreement agreement) {
  std::vector<KnobRow> rows;
  for (const KnobRow& row : all_knobs().rows())
    if (row.agreement == agreement) rows.push_back(row);
  return rows;
}

class EachKnob : public ::testing::TestWithParam<KnobRow> {};
class AgreedKnob : public EachKnob {};
class OwnKnob : public EachKnob {};

std::string name_of_row(const ::testing::TestParamInfo<KnobRow>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(, AgreedKnob, ::testing::ValuesIn(rows_that_are(Agreement::kAgreed)),
                         name_of_row);
INSTANTIATE_TEST_SUITE_P(, OwnKnob, ::testing::ValuesIn(rows_that_are(Agreement::kOwn)),
                         name_of_row);

TEST_P(AgreedKnob, ThatDiffersIsOneErrorOnAllRanks) {
  const KnobRow& row = GetParam();
  auto configs = with_one_other(row, another_value(row));
  auto errors = testing::run_ranks(configs);
  EXPECT_EQ(errors, std::vector<std::string>(3, errors[0]));
  EXPECT_TRUE(errors[0].starts_with(fmt::format("InvalidArgument {} is ", row.name))) << errors[0];
  for (Rank rank : {0, 1}) {
    std::string value = value_of(row, configs[rank]);
    std::string shown = value.empty() ? "(empty)" : fmt::format("\"{}\"", value);
    EXPECT_NE(errors[0].find(fmt::format("{} on rank {}", shown, rank)), std::string::npos)
        << errors[0];
  }
}

TEST_P(OwnKnob, MayDiffer) {
  const KnobRow& row = GetParam();
  // What works here as well as what the others have.
  std::map<std::string, std::string> values = {{"RINGCOLL_TRANSPORT", "auto"},
                                               {"RINGCOLL_INTERFACE", "=lo"}};
  auto configs =
      with_one_other(row, values.contains(row.name) ? values[row.name] : another_value(row));
  EXPECT_NE(value_of(row, configs[0]), value_of(row, configs[1]));
  auto errors = testing::run_ranks(configs, [&](Mesh& mesh) {
    EXPECT_EQ(value_of(row, mesh.config()), value_of(row, configs[mesh.rank()]));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

}  // namespace
}  // namespace ringcoll
