// Rules of parameter tables, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcoll::python {

/// Adds the functions rule_check and rule_apply.
void bind_rules(pybind11::module_& module);

}  // namespace ringcoll::python
