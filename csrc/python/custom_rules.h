// Rules of tables that are objects of Python.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcoll::python {

void bind_custom_rules(pybind11::module_& module);

}  // namespace ringcoll::python
