#include "transport/knobs.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>

#include "base/error.h"
#include "base/knobs_testing.h"
#include "transport/transport.h"

namespace ringcoll {
namespace {

using testing::another_value;
using testing::environment_of;

Config with_transport(const std::string& name) {
  return read_config(environment_of({{"RINGCOLL_TRANSPORT", name}}));
}

TEST(AllKnobs, OneOfThemTakesTheNameOfEveryTransport) {
  EXPECT_EQ(read_config(environment_of({})).transport, "auto");
  for (const TransportRow& row : transports()) {
    std::string name(row.name);
    EXPECT_EQ(with_transport(name).transport, name);
    try {
      with_transport("ib");
      ADD_FAILURE() << "there is no ib";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

TEST(AllKnobs, HaveThoseOfEveryTransport) {
  std::set<std::string_view> owners;
  for (const KnobRow& row : all_knobs().rows()) owners.insert(row.owner);
  for (const TransportRow& row : transports())
    EXPECT_EQ(owners.contains(row.name), row.knobs != nullptr) << row.name;
}

// Two rows of one name, or of one field, would each undo the other.
TEST(AllKnobs, AreReadIntoFieldsOfTheirOwn) {
  std::set<std::string> names;
  for (const KnobRow& row : all_knobs().rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    Config changed = read_config(environment_of({{row.name, another_value(row)}}));
    Config usual = read_config(environment_of({}));
    for (const KnobRow& other : all_knobs().rows())
      EXPECT_EQ(value_of(other, changed) == value_of(other, usual), &other != &row)
          << row.name << ", " << other.name;
  }
}

// So that equal values are said alike, and what is said can be set.
TEST(AllKnobs, SayTheirDefaultsAsTheTableDoes) {
  Config usual = read_config(environment_of({}));
  for (const KnobRow& row : all_knobs().rows())
    EXPECT_EQ(value_of(row, usual), row.default_value) << row.name;
}

}  // namespace
}  // namespace ringcoll
