// The updates, for the instruction set found at run time. Private to rules/.
//
// Scalars are doubles here, and each kernel rounds them to the type of its lanes.
#pragma once

#include <array>
#include <cstdint>

#include "rules/rule.h"

namespace ringcoll {

/// Arrays of `count` elements. Values are floating-point, the push has their type or float32, and
/// state has Rule::state_dtype().
struct Arrays {
  DataType dtype;
  DataType push_dtype;
  void* value;
  std::array<void*, kMostStateSlots> state;
  const void* push;
  int64_t count;
};

struct SgdScalars {
  double lr, momentum, undamped, weight_decay;  // undamped: 1 - dampening
  bool is_first, nesterov, maximize;
};

struct AdagradScalars {
  double lr, weight_decay, eps;
};

/// A value is scaled by `keep`, and the product of the value and `weight_decay` is added to the
/// gradient; 1 and 0 leave them as they are.
struct AdamScalars {
  double keep, weight_decay, one_less_beta1, beta2, one_less_beta2, root_of_correction2, eps,
      step_size;
};

void update_sum(const Arrays& arrays);
/// Precondition: the types differ.
void update_assign(const Arrays& arrays);
/// Uses one array of state if the momentum is not 0.
void update_sgd(const Arrays& arrays, const SgdScalars& scalars);
void update_adagrad(const Arrays& arrays, const AdagradScalars& scalars);
void update_adam(const Arrays& arrays, const AdamScalars& scalars);
/// value += (push - value) * fraction.
void update_average(const Arrays& arrays, double fraction);

}  // namespace ringcoll
