#include "python/rules.h"

#include <fmt/core.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "python/library.h"
#include "python/tensor.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

std::string rule_check(const std::string& rule) {
  char* json = nullptr;
  without_gil([&] { return ringcoll_rule_check(rule.c_str(), &json); });
  return take_json(json);
}

void check_count(const Tensor& tensor, const Tensor& value, const char* name) {
  if (tensor.count() != value.count())
    raise_invalid(fmt::format("rule_apply: {} has {} elements, and the value has {}", name,
                              tensor.count(), value.count()));
}

py::tuple rule_apply(const std::string& rule, const py::object& value, const py::sequence& state,
                     const py::object& push, int64_t pushes, double weight_sum, double weight) {
  const Tensor values(value, Access::kWrite, "rule_apply: the value");
  const Tensor pushed(push, Access::kRead, "rule_apply: the push");
  check_count(pushed, values, "the push");
  const rc_dtype state_dtype = values.dtype() == RC_FLOAT64 ? RC_FLOAT64 : RC_FLOAT32;
  std::deque<Tensor> slots;
  std::vector<void*> places;
  for (const auto& one : state) {
    const Tensor& slot = slots.emplace_back(one, Access::kWrite, "rule_apply: the state");
    check_count(slot, values, "an array of state");
    if (slot.dtype() != state_dtype)
      raise_invalid(fmt::format("rule_apply: an array of state is {}: it must be {}",
                                name_of(slot.dtype()), name_of(state_dtype)));
    places.push_back(slot.data());
  }
  without_gil([&] {
    return ringcoll_rule_apply(rule.c_str(), values.dtype(), values.count(), values.data(),
                               places.data(), places.size(), &pushes, &weight_sum, pushed.dtype(),
                               pushed.data(), weight);
  });
  return py::make_tuple(pushes, weight_sum);
}

}  // namespace

void bind_rules(py::module_& module) {
  using Guard = py::call_guard<Inside>;
  module.def("rule_check", &rule_check, py::arg("rule"),
             "The JSON of ringcoll_rule_check(): the rule with all its parameters, and its arrays "
             "of state.",
             Guard());
  module.def("rule_apply", &rule_apply, py::arg("rule"), py::arg("value"), py::arg("state"),
             py::arg("push"), py::arg("pushes") = 0, py::arg("weight_sum") = 0.0,
             py::arg("weight") = 1.0,
             "Applies a push to a row, for tests: what pushes and weight_sum are then.", Guard());
}

}  // namespace ringcoll::python
