// Deltas between two versions of a tensor, and checksums, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcoll::python {

/// Adds the functions delta_make, delta_apply, checksum and copy_checksum. They release the GIL.
void bind_delta(pybind11::module_& module);

}  // namespace ringcoll::python
