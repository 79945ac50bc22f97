// What a rule may be, and what a push may be for it.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/error_testing.h"
#include "rules/rule.h"

namespace ringcoll {
namespace {

using testing::error_of;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(RuleJson, ReadsWhatItPrints) {
  const std::vector<Rule::Parameters> all = {
      rules::Sum{},
      rules::Assign{},
      rules::Sgd{.lr = 0.1,
                 .momentum = 1.0 / 3,
                 .weight_decay = 5e-324,
                 .nesterov = true,
                 .maximize = true},
      rules::Sgd{.lr = 0, .dampening = -2},
      rules::Adagrad{
          .lr = 1, .lr_decay = 2, .weight_decay = 3, .initial_accumulator_value = 4, .eps = 1e308},
      rules::Adam{.lr = 0.1, .betas = {0, 0.9999999999999999}, .eps = 0, .weight_decay = 0.5},
      rules::AdamW{.lr = 0.1, .betas = {0.5, 0}, .eps = 1, .weight_decay = 0},
      rules::WeightedAverage{}};
  for (const auto& parameters : all) {
    const Rule rule(parameters);
    EXPECT_EQ(Rule::parse(rule.json()), rule) << rule.json();
  }
}

TEST(RuleJson, PrintsAllParameters) {
  EXPECT_EQ(Rule(rules::Sum{}).json(), R"({"rule":"sum"})");
  EXPECT_EQ(Rule(rules::Adam{}).json(),
            R"({"rule":"adam","lr":0.001,"betas":[0.9,0.999],"eps":1e-08,"weight_decay":0.0})");
  EXPECT_EQ(Rule(rules::Assign{.combine = rules::Merging::kSum}).json(),
            R"({"rule":"assign","combine":"sum"})");
  EXPECT_EQ(Rule(rules::Custom{.maker = "python", .data = "a\n"}).json(),
            R"({"rule":"custom","maker":"python","data":"a\n"})");
}

TEST(RuleJson, WhatIsLeftOutHasItsDefault) {
  EXPECT_EQ(Rule::parse(R"({"rule": "adamw", "betas": [0.5, 0.25]})"),
            Rule(rules::AdamW{.betas = {0.5, 0.25}}));
  EXPECT_EQ(Rule::parse(R"({"lr": 1, "rule": "sgd"})"), Rule(rules::Sgd{.lr = 1}));
  EXPECT_EQ(Rule::parse(R"({"rule": "weighted_average"})"), Rule(rules::WeightedAverage{}));
  EXPECT_EQ(Rule::parse(R"({"rule": "assign"})"),
            Rule(rules::Assign{.combine = rules::Merging::kLast}));
}

TEST(RuleJson, ErrorsNameTheParameterItsValueAndWhatItMayBe) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"sum", "a rule is not JSON"},
      {"[]", "a rule is []: it must be an object"},
      {R"({"lr": 1})",
       "rule is null: it must be one of: sum, assign, sgd, adagrad, adam, adamw, "
       "weighted_average, custom"},
      {R"({"rule": 1})", "rule is 1: it must be one of"},
      {R"({"rule": "sdg"})", R"(rule is "sdg": it must be one of)"},
      {R"({"rule": "sum", "lr": 1})",
       R"(rule sum: "lr" is no parameter of it; its parameters are: none)"},
      {R"({"rule": "assign", "combine": "each"})",
       R"(rule assign: combine is "each": it must be "last" or "sum")"},
      {R"({"rule": "custom"})", "rule custom: maker is empty"},
      {R"({"rule": "custom", "maker": "m", "data": 3})",
       "rule custom: data is 3: it must be a text"},
      {R"({"rule": "adam", "amsgrad": true})",
       R"(rule adam: "amsgrad" is no parameter of it; its parameters are: lr, betas, eps, )"
       "weight_decay"},
      {R"({"rule": "sgd", "lr": -1})",
       "rule sgd: lr is -1: it must be a finite number of at least "
       "0"},
      {R"({"rule": "sgd", "lr": "nan"})", R"(rule sgd: lr is "nan": it must be a finite number)"},
      {R"({"rule": "sgd", "lr": true})", "rule sgd: lr is true: it must be a finite number"},
      {R"({"rule": "sgd", "momentum": -0.5})", "rule sgd: momentum is -0.5: it must be"},
      {R"({"rule": "sgd", "nesterov": 1})", "rule sgd: nesterov is 1: it must be true or false"},
      {R"({"rule": "sgd", "nesterov": true})", "nesterov wants a momentum above 0"},
      {R"({"rule": "sgd", "nesterov": true, "momentum": 0.9, "dampening": 0.1})",
       "dampening is 0.1: nesterov wants a dampening of 0"},
      {R"({"rule": "adagrad", "initial_accumulator_value": -1})",
       "rule adagrad: initial_accumulator_value is -1: it must be"},
      {R"({"rule": "adam", "betas": [0.9]})",
       "rule adam: betas is [0.9]: it must be an array of "
       "two: each a number of at least 0 and below 1"},
      {R"({"rule": "adam", "betas": 0.9})", "rule adam: betas is 0.9: it must be an array of two"},
      {R"({"rule": "adam", "betas": [0.9, 1]})",
       "rule adam: betas[1] is 1: it must be a number of at least 0 and below 1"},
      {R"({"rule": "adamw", "betas": [-0.1, 0.9]})", "rule adamw: betas[0] is -0.1: it must be"},
      {R"({"rule": "adamw", "betas": [[], 0.9]})", "rule adamw: betas[0] is []: it must be"},
      {R"({"rule": [[[[]]]]})", "a rule: objects and arrays are nested more than 2 deep"},
      {"{\"rule\": \"\xff\"}", "a rule is not JSON"},
  };
  for (const auto& [json, wanted] : bad) {
    const Error error = error_of([&] { Rule::parse(json); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << json;
    EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos)
        << json << ": " << error.what();
  }
}

TEST(RuleJson, SaysHowPushesAreCombined) {
  EXPECT_EQ(Rule(rules::Adam{}).combine(), rules::Merging::kSum);
  EXPECT_EQ(Rule(rules::Assign{}).combine(), rules::Merging::kLast);
  EXPECT_EQ(Rule(rules::Assign{.combine = rules::Merging::kSum}).combine(), rules::Merging::kSum);
  EXPECT_EQ(Rule(rules::WeightedAverage{}).combine(), rules::Merging::kEach);
  EXPECT_EQ(Rule(rules::Custom{.maker = "m", .data = ""}).combine(), rules::Merging::kSum);
}

TEST(RuleJson, AConstructorChecksAsWell) {
  for (const double lr : {-1.0, kNan, kInfinity}) {
    const Error error = error_of([&] { Rule(rules::Adagrad{.lr = lr}); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("rule adagrad: lr is "), std::string::npos);
  }
}

TEST(RuleJson, SaysHowManyArraysOfStateItWants) {
  const std::vector<std::pair<std::string, size_t>> all = {
      {R"({"rule": "sum"})", 0},     {R"({"rule": "assign"})", 0},
      {R"({"rule": "sgd"})", 0},     {R"({"rule": "sgd", "momentum": 0.9})", 1},
      {R"({"rule": "adagrad"})", 1}, {R"({"rule": "adam"})", 2},
      {R"({"rule": "adamw"})", 2},   {R"({"rule": "weighted_average"})", 0}};
  for (const auto& [json, slots] : all) EXPECT_EQ(Rule::parse(json).state_slots(), slots) << json;
}

TEST(Push, HasTheTypeOfTheValuesOrFloat32) {
  const Rule sum(rules::Sum{}), adam(rules::Adam{});
  for (int dtype = 0; dtype < RC_DTYPE_COUNT; dtype++) {
    const auto value = static_cast<DataType>(dtype);
    const bool is_half = value == RC_FLOAT16 || value == RC_BFLOAT16;
    const bool is_float = is_half || value == RC_FLOAT32 || value == RC_FLOAT64;
    sum.check_push(value, value, 1);
    if (is_float) {
      adam.check_push(value, value, 1);
    } else {
      EXPECT_EQ(std::string(error_of([&] { adam.check_push(value, value, 1); }).what()),
                fmt::format("rule adam: values are {}: they must be floating-point numbers",
                            name_of(value)));
    }
    if (is_half) {
      adam.check_push(value, RC_FLOAT32, 1);
    } else if (value != RC_FLOAT32) {
      EXPECT_EQ(error_of([&] { sum.check_push(value, RC_FLOAT32, 1); }).code(),
                Code::kInvalidArgument);
    }
  }
  EXPECT_STREQ(error_of([&] { sum.check_push(RC_BFLOAT16, RC_FLOAT64, 1); }).what(),
               "rule sum: values are bfloat16, and a push is float64: it must have the type of the "
               "values or float32");
}

TEST(Push, HasAWeightThatTheRuleTakes) {
  const Rule sum(rules::Sum{}), average(rules::WeightedAverage{});
  average.check_push(RC_FLOAT32, RC_FLOAT32, 0.25);
  EXPECT_STREQ(error_of([&] { sum.check_push(RC_FLOAT32, RC_FLOAT32, 2); }).what(),
               "rule sum: the weight of a push is 2: this rule takes no weights, so it must be 1");
  for (const double weight : {0.0, -1.0, kNan, kInfinity})
    EXPECT_NE(
        std::string(error_of([&] { average.check_push(RC_FLOAT32, RC_FLOAT32, weight); }).what())
            .find("it must be a finite number above 0"),
        std::string::npos);
}

TEST(Push, ThatIsRefusedChangesNothing) {
  float value = 3, push = 4;
  RowTally tally{2, 1};
  const Error error = error_of([&] {
    Rule(rules::WeightedAverage{})
        .apply(RC_FLOAT32, {&value, {}, 1, &tally}, {RC_FLOAT32, &push, -1});
  });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(value, 3);
  EXPECT_EQ(tally, (RowTally{2, 1}));
}

}  // namespace
}  // namespace ringcoll
