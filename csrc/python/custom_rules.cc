#include "python/custom_rules.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "python/interpreter.h"
#include "python/library.h"
#include "python/tensor.h"
#include "ringcoll/tables.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

void put_text(char* place, std::string_view text) {
  const size_t length = std::min<size_t>(text.size(), RC_RULE_ERROR_ROOM - 1);
  std::memcpy(place, text.data(), length);
  place[length] = '\0';
}

constexpr std::array<py::ssize_t, 13> kElementBytes = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};
static_assert(RC_FLOAT16 == 8 && RC_FLOAT64 == 11 && RC_BOOL == 12);

/// The exception without the places in the code, which pybind11 adds.
std::string_view without_places(std::string_view text) {
  return text.substr(0, text.find("\n\nAt:"));
}

/// Runs code of Python in a server's thread. What it raises becomes the text of an error.
template <typename Function>
rc_status in_python(char* error, Function&& function) {
  const CalledBack called_back;
  const Acquired gil;
  if (!gil) {
    put_text(error, "the interpreter of Python ends");
    return RC_ABORTED;
  }
  try {
    function();
    return RC_OK;
  } catch (const std::exception& raised) {
    put_text(error, without_places(raised.what()));
    return RC_INVALID_ARGUMENT;
  }
}

rc_status make(void* maker, const char* data, size_t data_bytes, void** rule, char* error) {
  return in_python(error, [&] {
    py::object made = (*static_cast<py::object*>(maker))(py::bytes(data, data_bytes));
    *rule = new py::object(std::move(made));
  });
}

rc_status apply(void* rule, int64_t id, rc_dtype dtype, void* value, int64_t count,
                rc_dtype push_dtype, const void* push, char* error) {
  return in_python(error, [&] {
    const auto bytes = [&](rc_dtype type) {
      return static_cast<py::ssize_t>(count) * kElementBytes.at(type);
    };
    static_cast<py::object*>(rule)->attr("apply")(
        id, name_of(dtype), py::memoryview::from_memory(value, bytes(dtype)), name_of(push_dtype),
        py::memoryview::from_memory(push, bytes(push_dtype)));
  });
}

rc_status save(void* rule, char** data, size_t* data_bytes, char* error) {
  return in_python(error, [&] {
    const py::bytes saved = static_cast<py::object*>(rule)->attr("save")();
    const std::string_view text = saved;
    *data = static_cast<char*>(std::malloc(std::max<size_t>(text.size(), 1)));
    if (!*data) throw std::bad_alloc();
    std::memcpy(*data, text.data(), text.size());
    *data_bytes = text.size();
  });
}

/// An ending interpreter frees nothing any more.
void drop(void* rule) {
  const CalledBack called_back;
  const Acquired gil;
  if (gil) delete static_cast<py::object*>(rule);
}

/// The maker is kept for as long as the process lives.
void table_rules(const std::string& maker, const py::object& function) {
  auto* kept = new py::object(function);
  without_gil([&] { return ringcoll_table_rules(maker.c_str(), make, apply, save, drop, kept); });
}

}  // namespace

void bind_custom_rules(py::module_& module) {
  module.def("table_rules", &table_rules, py::arg("maker"), py::arg("make"),
             "ringcoll_table_rules(): make(data) returns an object with apply(id, dtype, value, "
             "push_dtype, push), whose values are memory that is gone afterwards, and save().",
             py::call_guard<Inside>());
}

}  // namespace ringcoll::python
