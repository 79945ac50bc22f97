#include "python/errors.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace ringcoll::python {

Failure Failure::last(rc_status status) {
  return {.status = status, .rank = ringcoll_error_rank(), .message = ringcoll_error_message()};
}

void raise(const Failure& failure) {
  // Imported on use: ringcoll.errors belongs to the package that imports this module.
  py::object from_status = py::module_::import("ringcoll.errors").attr("from_status");
  py::object error = from_status(static_cast<int>(failure.status), failure.message, failure.rank,
                                 failure.info.tag, failure.info.bytes);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

void raise_invalid(const std::string& message) {
  raise(Failure{.status = RC_INVALID_ARGUMENT, .message = message});
}

}  // namespace ringcoll::python
