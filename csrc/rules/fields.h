// The parameters of each rule: name, place and what it may be. Checks, JSON and its errors follow
// from them. Private to rules/.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "rules/rule.h"

namespace ringcoll {

/// What a number may be.
enum class Allowed : uint8_t { kAny, kNotNegative, kBelowOne };

inline bool is_in(Allowed allowed, double number) {
  if (!std::isfinite(number)) return false;
  return allowed == Allowed::kAny ||
         (number >= 0 && (allowed == Allowed::kNotNegative || number < 1));
}

/// The words for errors: "lr is -1: it must be a finite number of at least 0".
inline const char* text_of(Allowed allowed) {
  switch (allowed) {
    case Allowed::kNotNegative:
      return "a finite number of at least 0";
    case Allowed::kBelowOne:
      return "a number of at least 0 and below 1";
    default:
      return "a finite number";
  }
}

template <typename Parameters, typename Value>
struct Field {
  std::string_view name;
  Value Parameters::* place;
  Allowed allowed = Allowed::kAny;
};

/// A rule's name, and its fields as a tuple, in the order in which they are printed.
template <typename Parameters>
struct Fields;

template <>
struct Fields<rules::Sum> {
  static constexpr const char* kName = "sum";
  static constexpr auto kAll = std::tuple();
};

template <>
struct Fields<rules::Assign> {
  static constexpr const char* kName = "assign";
  static constexpr auto kAll = std::tuple(Field{"combine", &rules::Assign::combine});
};

template <>
struct Fields<rules::Sgd> {
  static constexpr const char* kName = "sgd";
  static constexpr auto kAll = std::tuple(
      Field{"lr", &rules::Sgd::lr, Allowed::kNotNegative},
      Field{"momentum", &rules::Sgd::momentum, Allowed::kNotNegative},
      Field{"dampening", &rules::Sgd::dampening, Allowed::kAny},
      Field{"weight_decay", &rules::Sgd::weight_decay, Allowed::kNotNegative},
      Field{"nesterov", &rules::Sgd::nesterov}, Field{"maximize", &rules::Sgd::maximize});
};

template <>
struct Fields<rules::Adagrad> {
  static constexpr const char* kName = "adagrad";
  static constexpr auto kAll =
      std::tuple(Field{"lr", &rules::Adagrad::lr, Allowed::kNotNegative},
                 Field{"lr_decay", &rules::Adagrad::lr_decay, Allowed::kNotNegative},
                 Field{"weight_decay", &rules::Adagrad::weight_decay, Allowed::kNotNegative},
                 Field{"initial_accumulator_value", &rules::Adagrad::initial_accumulator_value,
                       Allowed::kNotNegative},
                 Field{"eps", &rules::Adagrad::eps, Allowed::kNotNegative});
};

template <typename Parameters>
struct FieldsOfAdam {
  static constexpr auto kAll =
      std::tuple(Field{"lr", &Parameters::lr, Allowed::kNotNegative},
                 Field{"betas", &Parameters::betas, Allowed::kBelowOne},
                 Field{"eps", &Parameters::eps, Allowed::kNotNegative},
                 Field{"weight_decay", &Parameters::weight_decay, Allowed::kNotNegative});
};

template <>
struct Fields<rules::Adam> : FieldsOfAdam<rules::Adam> {
  static constexpr const char* kName = "adam";
};

template <>
struct Fields<rules::AdamW> : FieldsOfAdam<rules::AdamW> {
  static constexpr const char* kName = "adamw";
};

template <>
struct Fields<rules::WeightedAverage> {
  static constexpr const char* kName = "weighted_average";
  static constexpr auto kAll = std::tuple();
};

template <>
struct Fields<rules::Custom> {
  static constexpr const char* kName = "custom";
  static constexpr auto kAll =
      std::tuple(Field{"maker", &rules::Custom::maker}, Field{"data", &rules::Custom::data});
};

/// Calls visit(field, value) for each field of the parameters, which may be const.
template <typename Parameters, typename Visit>
void each_field(Parameters& parameters, Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field, parameters.*field.place), ...); },
             Fields<std::remove_const_t<Parameters>>::kAll);
}

}  // namespace ringcoll
