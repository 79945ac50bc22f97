// Rules through the C ABI.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "ringcoll/ringcoll.h"

namespace ringcoll {
namespace {

constexpr const char* kSgd = R"({"rule": "sgd", "lr": 0.5, "momentum": 0.5})";

TEST(RulesApi, DescribesARuleWithAllItsParameters) {
  char* json = nullptr;
  ASSERT_EQ(ringcoll_rule_check(kSgd, &json), RC_OK);
  EXPECT_EQ(std::string(json),
            R"({"rule":{"rule":"sgd","lr":0.5,"momentum":0.5,"dampening":0.0,"weight_decay":0.0,)"
            R"("nesterov":false,"maximize":false},"state_slots":1})");
  ringcoll_free(json);
}

TEST(RulesApi, SaysWhyARuleIsNone) {
  char before = 0, *json = &before;
  EXPECT_EQ(ringcoll_rule_check(R"({"rule": "sgd", "lr": -1})", &json), RC_INVALID_ARGUMENT);
  EXPECT_EQ(json, nullptr);
  EXPECT_STREQ(ringcoll_error_message(),
               "rule sgd: lr is -1: it must be a finite number of at least 0");
  EXPECT_EQ(ringcoll_rule_check(nullptr, &json), RC_INVALID_ARGUMENT);
  EXPECT_EQ(ringcoll_rule_check(kSgd, nullptr), RC_INVALID_ARGUMENT);
}

/// A row of two elements.
struct OwnRow {
  std::array<float, 2> value = {1, 2}, buffer = {};
  void* state = buffer.data();
  int64_t pushes = 0;
  double weights = 0;
  bool operator==(const OwnRow& other) const {
    return value == other.value && buffer == other.buffer && pushes == other.pushes &&
           weights == other.weights;
  }
};

TEST(RulesApi, AppliesPushesToARow) {
  OwnRow row;
  const std::array<float, 2> push = {1, -2};
  for (int i = 0; i < 2; i++)
    ASSERT_EQ(ringcoll_rule_apply(kSgd, RC_FLOAT32, 2, row.value.data(), &row.state, 1, &row.pushes,
                                  &row.weights, RC_FLOAT32, push.data(), 1),
              RC_OK);
  // The momentum buffer is the push, and then one and a half of it.
  EXPECT_EQ(row.buffer, (std::array<float, 2>{1.5F, -3}));
  EXPECT_EQ(row.value, (std::array<float, 2>{1 - 1.25F, 2 + 2.5F}));
  EXPECT_EQ(row.pushes, 2);
  int64_t pushes = 0;
  double weights = 0;
  ASSERT_EQ(ringcoll_rule_apply(R"({"rule": "weighted_average"})", RC_FLOAT32, 2, row.value.data(),
                                nullptr, 0, &pushes, &weights, RC_FLOAT32, push.data(), 0.5),
            RC_OK);
  EXPECT_EQ(pushes, 1);
  EXPECT_EQ(weights, 0.5);
  EXPECT_EQ(row.value, push);
  EXPECT_EQ(ringcoll_rule_apply(R"({"rule": "assign"})", RC_INT8, 0, nullptr, nullptr, 0, &pushes,
                                &weights, RC_INT8, nullptr, 1),
            RC_OK);
}

TEST(RulesApi, RefusesWhatDoesNotFitAndChangesNothing) {
  OwnRow row;
  const OwnRow before = row;
  const std::array<float, 2> push = {1, -2};
  void* const nothing = nullptr;
  const auto none = static_cast<rc_dtype>(RC_DTYPE_COUNT);
  auto apply = [&](rc_dtype dtype, int64_t count, void* value, void* const* state, size_t slots,
                   int64_t* pushes, double* weights, rc_dtype push_dtype, const void* data,
                   double weight) {
    return ringcoll_rule_apply(kSgd, dtype, count, value, state, slots, pushes, weights, push_dtype,
                               data, weight);
  };
  auto* value = row.value.data();
  int64_t negative = -1;
  const rc_status statuses[] = {
      ringcoll_rule_apply(nullptr, RC_FLOAT32, 2, value, &row.state, 1, &row.pushes, &row.weights,
                          RC_FLOAT32, push.data(), 1),
      apply(none, 2, value, &row.state, 1, &row.pushes, &row.weights, none, push.data(), 1),
      apply(RC_INT32, 2, value, &row.state, 1, &row.pushes, &row.weights, RC_INT32, push.data(), 1),
      apply(RC_FLOAT32, -1, value, &row.state, 1, &row.pushes, &row.weights, RC_FLOAT32,
            push.data(), 1),
      apply(RC_FLOAT32, 2, nullptr, &row.state, 1, &row.pushes, &row.weights, RC_FLOAT32,
            push.data(), 1),
      apply(RC_FLOAT32, 2, value, nullptr, 1, &row.pushes, &row.weights, RC_FLOAT32, push.data(),
            1),
      apply(RC_FLOAT32, 2, value, &nothing, 1, &row.pushes, &row.weights, RC_FLOAT32, push.data(),
            1),
      apply(RC_FLOAT32, 2, value, &row.state, 0, &row.pushes, &row.weights, RC_FLOAT32, push.data(),
            1),
      apply(RC_FLOAT32, 2, value, &row.state, 1, nullptr, &row.weights, RC_FLOAT32, push.data(), 1),
      apply(RC_FLOAT32, 2, value, &row.state, 1, &negative, &row.weights, RC_FLOAT32, push.data(),
            1),
      apply(RC_FLOAT32, 2, value, &row.state, 1, &row.pushes, nullptr, RC_FLOAT32, push.data(), 1),
      apply(RC_FLOAT32, 2, value, &row.state, 1, &row.pushes, &row.weights, RC_FLOAT64, push.data(),
            1),
      apply(RC_FLOAT32, 2, value, &row.state, 1, &row.pushes, &row.weights, RC_FLOAT32, nullptr, 1),
      apply(RC_FLOAT32, 2, value, &row.state, 1, &row.pushes, &row.weights, RC_FLOAT32, push.data(),
            2),
  };
  for (size_t i = 0; i < std::size(statuses); i++) EXPECT_EQ(statuses[i], RC_INVALID_ARGUMENT) << i;
  EXPECT_EQ(row, before);
}

}  // namespace
}  // namespace ringcoll
