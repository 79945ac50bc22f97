// The rules of parameter tables: how a push changes a row. They are pure, and know neither tables
// nor threads.
//
// Copies of a row on several machines must stay equal, bit for bit, when the same pushes are
// applied in the same order. So a result does not depend on the processor: every operation is one
// that IEEE 754 defines (+ - * / and square root), rounded on its own, in a fixed order. A NaN that
// an update computes is the quiet NaN without sign or payload. The floating-point environment of
// the thread must be the default one (FloatEnvironment).
//
// SGD, Adagrad, Adam and AdamW compute what torch.optim computes for dense parameters on a CPU, in
// the order of its implementation for single tensors. Torch may fuse a multiplication and an
// addition, so it can differ in the last bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/types.h"

namespace ringcoll {

namespace rules {

/// What several pushes to one row become that count as one push: those of a clock, or the same rows
/// of one push.
enum class Merging : uint8_t {
  kLast,  // the last one
  kSum,
  kEach,  // they are applied one after another
};

/// value += push. Integers wrap; for bool it is "or".
struct Sum {
  bool operator==(const Sum&) const = default;
};

/// value = push.
struct Assign {
  Merging combine = Merging::kLast;  // or kSum
  bool operator==(const Assign&) const = default;
};

/// Stochastic gradient descent. The push is a gradient. With momentum it has one array of state,
/// the momentum buffer, which the first push fills as it is.
struct Sgd {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool operator==(const Sgd&) const = default;
};

/// Divides each step by the root of the sum of squared gradients, its one array of state.
struct Adagrad {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool operator==(const Adagrad&) const = default;
};

/// Two arrays of state: the moving averages of the gradient and of its square.
struct Adam {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;  // is added to the gradient
  bool operator==(const Adam&) const = default;
};

/// Adam whose weight decay scales the value itself.
struct AdamW {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool operator==(const AdamW&) const = default;
};

/// value += (push - value) * w / (W + w): w is the weight of the push, and W the sum of the weights
/// of the pushes before. The first push is taken as it is.
struct WeightedAverage {
  bool operator==(const WeightedAverage&) const = default;
};

/// A rule that the library does not have (CustomRule): which maker makes it, and of what.
struct Custom {
  std::string maker;
  std::string data;  // a text
  bool operator==(const Custom&) const = default;
};

}  // namespace rules

/// No rule has more arrays of state.
inline constexpr size_t kMostStateSlots = 2;

/// What apply() counts for a row. It belongs to the state of the row: a new row begins with zeros,
/// and a copy of a row needs it, too.
struct RowTally {
  int64_t pushes = 0;  // what torch calls the step
  double weight = 0;   // the sum of their weights, for the rules that take weights
  bool operator==(const RowTally&) const = default;
};

/// One row. Arrays have `count` elements, need no alignment and do not overlap.
struct Row {
  void* value = nullptr;
  std::array<void*, kMostStateSlots> state{};  // the first state_slots() of them
  int64_t count = 0;
  RowTally* tally = nullptr;
};

/// An array of as many elements as the row.
struct Push {
  DataType dtype = RC_FLOAT32;
  const void* data = nullptr;
  double weight = 1;
};

/// A rule with its parameters, which are valid. A caller that changes the learning rate, or another
/// parameter, replaces the rule. The rows may be kept if state_slots() stays the same.
class Rule {
 public:
  using Parameters = std::variant<rules::Sum, rules::Assign, rules::Sgd, rules::Adagrad,
                                  rules::Adam, rules::AdamW, rules::WeightedAverage, rules::Custom>;

  /// Throws Error(kInvalidArgument), which names the parameter, its value and what it may be.
  explicit Rule(const Parameters& parameters);
  /// The rule that an object such as {"rule": "sgd", "lr": 0.1} describes. Parameters that are left
  /// out have the defaults above. Throws as the constructor does, also for unknown names.
  static Rule parse(std::string_view json);

  /// The object that parse() reads, with all parameters. Numbers are exact.
  std::string json() const;
  /// "sum", "assign", "sgd", "adagrad", "adam", "adamw", "weighted_average" or "custom".
  const char* name() const;
  const Parameters& parameters() const { return parameters_; }
  bool operator==(const Rule&) const = default;

  /// How many arrays of state a row has, each of as many elements as the value.
  size_t state_slots() const;
  /// True if pushes may have another weight than 1.
  bool takes_weights() const;
  rules::Merging combine() const;
  /// Null for the rules of the library.
  const rules::Custom* custom() const { return std::get_if<rules::Custom>(&parameters_); }
  /// The arithmetic of floating-point values and their state: float64 for float64, and float32 for
  /// the others. 16-bit values are rounded once, at the end.
  static DataType state_dtype(DataType value) {
    return value == RC_FLOAT64 ? RC_FLOAT64 : RC_FLOAT32;
  }
  /// Fills an array of state for a new row.
  void begin_state(DataType value, void* state, int64_t count) const;

  /// Throws Error(kInvalidArgument) unless rows of this type take pushes of that type and weight.
  /// Sum, Assign and Custom take every type, the others floating-point types. A push has the type
  /// of the value; 16-bit floating-point values also take float32. A weight is above 0 and finite.
  void check_push(DataType value, DataType push, double weight) const;
  /// Applies a push to a row of this type. A NaN in the push makes the element NaN. Throws as
  /// check_push() does, and for a custom rule, which only a CustomRule can apply; the row is then
  /// unchanged. Precondition: a FloatEnvironment exists in this thread.
  void apply(DataType value, const Row& row, const Push& push) const;

 private:
  Parameters parameters_;
};

/// How many elements are NaN; 0 for integers and bool.
int64_t count_nan(DataType dtype, const void* data, int64_t count);

}  // namespace ringcoll
