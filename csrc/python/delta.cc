#include "python/delta.h"

#include <fmt/core.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>

#include "python/errors.h"
#include "python/library.h"
#include "python/tensor.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

size_t bytes_of(const Tensor& tensor) { return static_cast<size_t>(tensor.bytes()); }

std::optional<size_t> delta_make(const py::object& before, const py::object& now,
                                 const py::object& out) {
  Tensor older(before, Access::kRead, "delta_make: before");
  Tensor newer(now, Access::kRead, "delta_make: now");
  Tensor room(out, Access::kWrite, "delta_make: out");
  if (older.element_bytes() != newer.element_bytes() || older.count() != newer.count())
    raise_invalid(fmt::format(
        "delta_make: before has {} elements of {}, and now has {} of {}. Pass two versions of one "
        "tensor",
        older.count(), name_of(older.dtype()), newer.count(), name_of(newer.dtype())));
  size_t length = 0;
  rc_status status = without_gil(
      [&] {
        return ringcoll_delta_make(older.data(), newer.data(), bytes_of(newer),
                                   static_cast<int>(newer.element_bytes()), room.data(),
                                   bytes_of(room), &length);
      },
      RC_TOO_LONG);
  return status == RC_OK ? std::optional(length) : std::nullopt;
}

void delta_apply(const py::object& tensor, const py::object& delta) {
  Tensor target(tensor, Access::kWrite, "delta_apply: the tensor");
  Tensor source(delta, Access::kRead, "delta_apply: the delta");
  without_gil([&] {
    return ringcoll_delta_apply(target.data(), bytes_of(target), source.data(), bytes_of(source));
  });
}

uint64_t checksum(const py::object& tensor) {
  Tensor source(tensor, Access::kRead, "checksum: the tensor");
  uint64_t sum = 0;
  without_gil([&] { return ringcoll_checksum(source.data(), bytes_of(source), &sum); });
  return sum;
}

uint64_t copy_checksum(const py::object& out, const py::object& tensor) {
  Tensor target(out, Access::kWrite, "copy_checksum: out");
  Tensor source(tensor, Access::kRead, "copy_checksum: the tensor");
  if (target.bytes() != source.bytes())
    raise_invalid(
        fmt::format("copy_checksum: out has {} bytes, and the tensor has {}. Pass an output of the "
                    "same length",
                    target.bytes(), source.bytes()));
  uint64_t sum = 0;
  without_gil(
      [&] { return ringcoll_copy_checksum(target.data(), source.data(), bytes_of(source), &sum); });
  return sum;
}

}  // namespace

void bind_delta(py::module_& module) {
  using Guard = py::call_guard<Inside>;
  module.def("delta_make", &delta_make, py::arg("before"), py::arg("now"), py::arg("out"),
             "Writes what turns before into now to out: its length in bytes, or None if it is "
             "longer than out.",
             Guard());
  module.def("delta_apply", &delta_apply, py::arg("tensor"), py::arg("delta"),
             "Turns the tensor into the newer version. A damaged delta leaves it unchanged.",
             Guard());
  module.def("checksum", &checksum, py::arg("tensor"),
             "The sum of the tensor's bytes, by ringcoll_checksum.", Guard());
  module.def("copy_checksum", &copy_checksum, py::arg("out"), py::arg("tensor"),
             "Copies the tensor's bytes to out, and returns their checksum.", Guard());
}

}  // namespace ringcoll::python
