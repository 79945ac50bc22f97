#include "python/errors.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace ringcoll::python {

Failure Failure::last(rc_status status) {
  return {status, ringcoll_error_rank(), ringcoll_error_message()};
}

void raise(const Failure& failure) {
  // Imported when needed: the module of the exceptions belongs to the package that imports this
  // one.
  py::object from_status = py::module_::import("ringcoll.errors").attr("from_status");
  py::object error = from_status(static_cast<int>(failure.status), failure.message, failure.rank);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

void raise_invalid(const std::string& message) { raise(Failure{RC_INVALID_ARGUMENT, -1, message}); }

}  // namespace ringcoll::python
