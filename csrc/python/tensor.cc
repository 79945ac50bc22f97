#include "python/tensor.h"

#include <fmt/core.h>

#include <array>
#include <bit>
#include <optional>
#include <string_view>

#include "python/errors.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

static_assert(std::endian::native == std::endian::little, "formats below are read as native");

constexpr std::array<const char*, RC_DTYPE_COUNT> kNames = {
    "uint8", "int8",    "uint16",   "int16",   "uint32",  "int32", "uint64",
    "int64", "float16", "bfloat16", "float32", "float64", "bool"};

/// The kind of number that an element is; with its width it makes an rc_dtype.
enum class Kind { kSigned, kUnsigned, kFloat, kBfloat, kBool };

std::optional<rc_dtype> dtype_of(Kind kind, int64_t bytes) {
  auto by_width = [bytes](rc_dtype one, rc_dtype two, rc_dtype four,
                          rc_dtype eight) -> std::optional<rc_dtype> {
    if (bytes == 1) return one;
    if (bytes == 2) return two;
    if (bytes == 4) return four;
    if (bytes == 8) return eight;
    return {};
  };
  switch (kind) {
    case Kind::kSigned:
      return by_width(RC_INT8, RC_INT16, RC_INT32, RC_INT64);
    case Kind::kUnsigned:
      return by_width(RC_UINT8, RC_UINT16, RC_UINT32, RC_UINT64);
    case Kind::kFloat:
      if (bytes == 1) return {};
      return by_width(RC_UINT8, RC_FLOAT16, RC_FLOAT32, RC_FLOAT64);
    case Kind::kBfloat:
      return bytes == 2 ? std::optional(RC_BFLOAT16) : std::nullopt;
    case Kind::kBool:
      return bytes == 1 ? std::optional(RC_BOOL) : std::nullopt;
  }
  return {};
}

/// Reads a struct-module format of one element: "f", "<i", "@q". Big-endian and compound ones have
/// no rc_dtype.
std::optional<rc_dtype> dtype_of(std::string_view format, int64_t bytes) {
  if (!format.empty() && std::string_view("@=<").find(format[0]) != std::string_view::npos)
    format.remove_prefix(1);
  if (format.size() != 1) return {};
  auto one_of = [&](std::string_view letters) { return letters.find(format) != letters.npos; };
  if (one_of("bhilqn")) return dtype_of(Kind::kSigned, bytes);
  if (one_of("BHILQNc")) return dtype_of(Kind::kUnsigned, bytes);
  if (one_of("efd")) return dtype_of(Kind::kFloat, bytes);
  if (one_of("?")) return dtype_of(Kind::kBool, bytes);
  return {};
}

// DLPack names bool since its version 0.8; older headers lack it.
constexpr uint8_t kDlpackBool = 6;

std::optional<rc_dtype> dtype_of(DLDataType type) {
  if (type.lanes != 1 || type.bits % 8 != 0) return {};
  int64_t bytes = type.bits / 8;
  switch (type.code) {
    case kDLInt:
      return dtype_of(Kind::kSigned, bytes);
    case kDLUInt:
      return dtype_of(Kind::kUnsigned, bytes);
    case kDLFloat:
      return dtype_of(Kind::kFloat, bytes);
    case kDLBfloat:
      return dtype_of(Kind::kBfloat, bytes);
    case kDlpackBool:
      return dtype_of(Kind::kBool, bytes);
    default:
      return {};
  }
}

[[noreturn]] void refuse_dtype(const std::string& what, const std::string& dtype) {
  raise_invalid(fmt::format(
      "{}: no collective works on elements of type {}. Convert to one of int8 to int64, uint8 to "
      "uint64, float16, bfloat16, float32, float64, bool, in the byte order of this machine",
      what, dtype));
}

[[noreturn]] void refuse_layout(const std::string& what) {
  raise_invalid(
      fmt::format("{} is not contiguous (row by row, without gaps). Pass a contiguous copy: "
                  "numpy.ascontiguousarray(x), or x.contiguous() of torch",
                  what));
}

bool contiguous(const DLTensor& tensor) {
  if (!tensor.strides) return true;
  int64_t expected = 1;
  bool empty = false;
  bool regular = true;
  for (int i = tensor.ndim - 1; i >= 0; i--) {
    if (tensor.shape[i] == 0) empty = true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) regular = false;
    expected *= tensor.shape[i];
  }
  return regular || empty;
}

bool on_host(DLDevice device) {
  return device.device_type == kDLCPU || device.device_type == kDLCUDAHost ||
         device.device_type == kDLROCMHost;
}

/// A DLPack capsule. torch's own function is ten times as fast as its __dlpack__, which is Python
/// code, but exports also what requires a gradient; that is left to __dlpack__ to refuse.
py::object make_capsule(py::handle object) {
  auto torch = py::reinterpret_steal<py::object>(PyImport_GetModule(py::str("torch").ptr()));
  if (!torch) {
    if (PyErr_Occurred()) throw py::error_already_set();
    return object.attr("__dlpack__")();
  }
  bool is_tensor = py::isinstance(object, torch.attr("Tensor"));
  if (!is_tensor || py::cast<bool>(object.attr("requires_grad")))
    return object.attr("__dlpack__")();
  return torch.attr("utils").attr("dlpack").attr("to_dlpack")(object);
}

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

}  // namespace

const char* name_of(rc_dtype dtype) {
  return static_cast<size_t>(dtype) < kNames.size() ? kNames[dtype] : "?";
}

Tensor::Tensor(py::handle object, Access access, const std::string& what) {
  if (borrow_buffer(object, access, what) || borrow_bfloat16(object, access, what) ||
      borrow_dlpack(object, what))
    return;
  raise_invalid(fmt::format(
      "{} is no tensor but {}. Pass anything with the buffer protocol or DLPack, such as a NumPy "
      "array or a torch tensor",
      what, type_name(object)));
}

bool Tensor::borrow_buffer(py::handle object, Access access, const std::string& what) {
  if (!PyObject_CheckBuffer(object.ptr())) return false;
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_FULL_RO) != 0) {
    PyErr_Clear();  // NumPy has no format for bfloat16 and others; the next way may
    return false;
  }
  view_.reset(view.release());
  auto dtype = dtype_of(view_->format ? view_->format : "B", view_->itemsize);
  if (!dtype) refuse_dtype(what, fmt::format("\"{}\"", view_->format));
  if (!PyBuffer_IsContiguous(view_.get(), 'C')) refuse_layout(what);
  if (access == Access::kWrite && view_->readonly)
    raise_invalid(fmt::format("{} is read-only ({}). Pass memory that may be written", what,
                              type_name(object)));
  dtype_ = *dtype;
  data_ = view_->buf;
  element_bytes_ = view_->itemsize;
  count_ = view_->len / element_bytes_;
  return true;
}

// ml_dtypes gives NumPy a bfloat16 that neither the buffer protocol nor NumPy's DLPack can name;
// the same memory seen as uint16 can be borrowed.
bool Tensor::borrow_bfloat16(py::handle object, Access access, const std::string& what) {
  if (!py::hasattr(object, "dtype") || !py::hasattr(object, "view")) return false;
  py::object dtype = object.attr("dtype");
  if (!py::hasattr(dtype, "name")) return false;
  std::string name = py::str(dtype.attr("name"));
  if (name != "bfloat16") {
    if (PyObject_CheckBuffer(object.ptr())) refuse_dtype(what, name);
    return false;
  }
  if (!borrow_buffer(object.attr("view")("uint16"), access, what)) return false;
  dtype_ = RC_BFLOAT16;
  return true;
}

bool Tensor::borrow_dlpack(py::handle object, const std::string& what) {
  if (!py::hasattr(object, "__dlpack__")) return false;
  py::object capsule;
  try {
    capsule = make_capsule(object);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt
    raise_invalid(fmt::format("{} ({}) cannot be borrowed: {}", what, type_name(object),
                              std::string(py::str(error.value()))));
  }
  void* managed = PyCapsule_GetPointer(capsule.ptr(), "dltensor");
  if (!managed) throw py::error_already_set();
  managed_.reset(static_cast<DLManagedTensor*>(managed));
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");  // by the protocol: the deleter is ours now
  const DLTensor& tensor = managed_->dl_tensor;
  if (!on_host(tensor.device))
    raise_invalid(
        fmt::format("{} lies on a device (DLPack device type {}, number {}), and ringcoll works on "
                    "host memory. "
                    "Pass a copy: x.cpu()",
                    what, static_cast<int>(tensor.device.device_type), tensor.device.device_id));
  auto dtype = dtype_of(tensor.dtype);
  if (!dtype)
    refuse_dtype(what,
                 fmt::format("(DLPack code {}, {} bits)", tensor.dtype.code, tensor.dtype.bits));
  if (!contiguous(tensor)) refuse_layout(what);
  dtype_ = *dtype;
  element_bytes_ = tensor.dtype.bits / 8;
  count_ = 1;
  for (int i = 0; i < tensor.ndim; i++) count_ *= tensor.shape[i];
  data_ = static_cast<char*>(tensor.data) + tensor.byte_offset;
  return true;
}

}  // namespace ringcoll::python
