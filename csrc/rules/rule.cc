// see the header
#include "rules/rule.h"

#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "reduce/reduce.h"
#include "rules/fields.h"
#include "rules/kernels.h"

namespace ringcoll {
namespace {

bool is_half(DataType dtype) { return dtype == RC_FLOAT16 || dtype == RC_BFLOAT16; }
bool is_float(DataType dtype) {
  return is_half(dtype) || dtype == RC_FLOAT32 || dtype == RC_FLOAT64;
}

void check_number(const char* rule, std::string_view name, double number, Allowed allowed) {
  check(is_in(allowed, number), Code::kInvalidArgument, "rule {}: {} is {}: it must be {}", rule,
        name, number, text_of(allowed));
}

template <typename Parameters>
void check_parameters(const Parameters& parameters) {
  constexpr const char* kName = Fields<Parameters>::kName;
  each_field(parameters, [](const auto& field, const auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, double>) {
      check_number(kName, field.name, value, field.allowed);
    } else if constexpr (std::is_same_v<Value, std::array<double, 2>>) {
      for (size_t i = 0; i < value.size(); i++)
        check_number(kName, fmt::format("{}[{}]", field.name, i), value[i], field.allowed);
    }
  });
  if constexpr (std::is_same_v<Parameters, rules::Sgd>) {
    check(!parameters.nesterov || parameters.momentum > 0, Code::kInvalidArgument,
          "rule sgd: nesterov is true, and momentum is 0: nesterov wants a momentum above 0");
    check(!parameters.nesterov || parameters.dampening == 0, Code::kInvalidArgument,
          "rule sgd: nesterov is true, and dampening is {}: nesterov wants a dampening of 0",
          parameters.dampening);
  }
  if constexpr (std::is_same_v<Parameters, rules::Assign>)
    check(parameters.combine != rules::Merging::kEach, Code::kInvalidArgument,
          "rule assign: combine is neither last nor sum");
  if constexpr (std::is_same_v<Parameters, rules::Custom>)
    check(!parameters.maker.empty(), Code::kInvalidArgument,
          "rule custom: maker is empty: it must be the name of one that makes such rules");
}

/// 1 - beta^pushes, by multiplications alone: std::pow() is not rounded correctly, and its last bit
/// depends on the processor.
double bias_correction(double beta, int64_t pushes) {
  constexpr double kNothing = 0x1p-60;  // subtracted from 1, it changes nothing
  double power = 1;
  for (double square = beta; pushes > 0; pushes /= 2, square *= square) {
    if (square < kNothing) return 1;
    power *= pushes % 2 == 1 ? square : 1;
  }
  return 1 - power;
}

/// A row with a push for it, of checked types, and counted in the tally.
struct Step {
  Arrays arrays;
  const RowTally& tally;
  double weight;
};

void apply_rule(const rules::Sum&, const Step& step) {
  const Arrays& arrays = step.arrays;
  if (is_float(arrays.dtype)) return update_sum(arrays);
  combine_kernel(arrays.dtype, RC_SUM)(arrays.value, arrays.value, arrays.push, arrays.count);
}

void apply_rule(const rules::Assign&, const Step& step) {
  const Arrays& arrays = step.arrays;
  if (arrays.dtype != arrays.push_dtype) return update_assign(arrays);
  const size_t bytes = static_cast<size_t>(arrays.count) * size_of(arrays.dtype);
  if (bytes > 0) std::memcpy(arrays.value, arrays.push, bytes);
}

void apply_rule(const rules::Sgd& sgd, const Step& step) {
  update_sgd(step.arrays, {.lr = sgd.lr,
                           .momentum = sgd.momentum,
                           .undamped = 1 - sgd.dampening,
                           .weight_decay = sgd.weight_decay,
                           .is_first = step.tally.pushes == 1,
                           .nesterov = sgd.nesterov,
                           .maximize = sgd.maximize});
}

void apply_rule(const rules::Adagrad& adagrad, const Step& step) {
  const double decay = 1 + static_cast<double>(step.tally.pushes - 1) * adagrad.lr_decay;
  update_adagrad(
      step.arrays,
      {.lr = adagrad.lr / decay, .weight_decay = adagrad.weight_decay, .eps = adagrad.eps});
}

/// Of Adam and AdamW, which differ in `keep` and `weight_decay`.
template <typename Parameters>
AdamScalars scalars_of(const Parameters& adam, int64_t pushes) {
  return {.keep = 1,
          .weight_decay = 0,
          .one_less_beta1 = 1 - adam.betas[0],
          .beta2 = adam.betas[1],
          .one_less_beta2 = 1 - adam.betas[1],
          .root_of_correction2 = std::sqrt(bias_correction(adam.betas[1], pushes)),
          .eps = adam.eps,
          .step_size = adam.lr / bias_correction(adam.betas[0], pushes)};
}

void apply_rule(const rules::Adam& adam, const Step& step) {
  AdamScalars scalars = scalars_of(adam, step.tally.pushes);
  scalars.weight_decay = adam.weight_decay;
  update_adam(step.arrays, scalars);
}

void apply_rule(const rules::AdamW& adam, const Step& step) {
  AdamScalars scalars = scalars_of(adam, step.tally.pushes);
  scalars.keep = 1 - adam.lr * adam.weight_decay;
  update_adam(step.arrays, scalars);
}

/// The first push is copied, since what the row had before could be so large that a difference from
/// it would lose the digits of the push.
void apply_rule(const rules::WeightedAverage&, const Step& step) {
  if (step.tally.pushes == 1) return apply_rule(rules::Assign{}, step);
  update_average(step.arrays, step.weight / step.tally.weight);
}

void apply_rule(const rules::Custom&, const Step&) {
  throw Error(Code::kInternal, "a custom rule is not the library's to apply");
}

template <typename T>
void fill(void* out, double value, int64_t count) {
  const T element = static_cast<T>(value);
  auto* bytes = static_cast<std::byte*>(out);
  for (int64_t i = 0; i < count; i++) std::memcpy(bytes + i * sizeof(T), &element, sizeof(T));
}

}  // namespace

Rule::Rule(const Parameters& parameters) : parameters_(parameters) {
  std::visit([](const auto& rule) { check_parameters(rule); }, parameters_);
}

const char* Rule::name() const {
  return std::visit(
      [](const auto& rule) { return Fields<std::remove_cvref_t<decltype(rule)>>::kName; },
      parameters_);
}

size_t Rule::state_slots() const {
  if (const auto* sgd = std::get_if<rules::Sgd>(&parameters_)) return sgd->momentum == 0 ? 0 : 1;
  if (std::holds_alternative<rules::Adagrad>(parameters_)) return 1;
  return std::holds_alternative<rules::Adam>(parameters_) ||
                 std::holds_alternative<rules::AdamW>(parameters_)
             ? 2
             : 0;
}

bool Rule::takes_weights() const {
  return std::holds_alternative<rules::WeightedAverage>(parameters_);
}

rules::Merging Rule::combine() const {
  if (const auto* assign = std::get_if<rules::Assign>(&parameters_)) return assign->combine;
  return takes_weights() ? rules::Merging::kEach : rules::Merging::kSum;
}

void Rule::begin_state(DataType value, void* state, int64_t count) const {
  const auto* adagrad = std::get_if<rules::Adagrad>(&parameters_);
  const double initial = adagrad ? adagrad->initial_accumulator_value : 0;
  if (state_dtype(value) == RC_FLOAT64)
    fill<double>(state, initial, count);
  else
    fill<float>(state, initial, count);
}

void Rule::check_push(DataType value, DataType push, double weight) const {
  const bool takes_all = std::holds_alternative<rules::Sum>(parameters_) ||
                         std::holds_alternative<rules::Assign>(parameters_) || custom();
  check(takes_all || is_float(value), Code::kInvalidArgument,
        "rule {}: values are {}: they must be floating-point numbers", name(), name_of(value));
  check(push == value || (is_half(value) && push == RC_FLOAT32), Code::kInvalidArgument,
        "rule {}: values are {}, and a push is {}: it must have the type of the values{}", name(),
        name_of(value), name_of(push), is_half(value) ? " or float32" : "");
  check(takes_weights() || weight == 1, Code::kInvalidArgument,
        "rule {}: the weight of a push is {}: this rule takes no weights, so it must be 1", name(),
        weight);
  check(std::isfinite(weight) && weight > 0, Code::kInvalidArgument,
        "rule {}: the weight of a push is {}: it must be a finite number above 0", name(), weight);
}

void Rule::apply(DataType value, const Row& row, const Push& push) const {
  check_push(value, push.dtype, push.weight);
  check(!custom(), Code::kInvalidArgument, "rule custom: only servers of tables apply it");
  RowTally& tally = *row.tally;
  tally.pushes++;
  if (takes_weights()) tally.weight += push.weight;
  const Step step{
      {value, push.dtype, row.value, row.state, push.data, row.count}, tally, push.weight};
  std::visit([&](const auto& rule) { apply_rule(rule, step); }, parameters_);
}

}  // namespace ringcoll
