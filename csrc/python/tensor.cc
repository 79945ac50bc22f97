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

/// The kind of number of an element. Kind and width determine the rc_dtype.
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

/// Reads the format of one element as Python's module struct writes it: "f", "<i", "@q". Returns
/// nothing for big-endian and compound formats.
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

// DLPack has bool since 0.8 and versioned tensors since 1.0. The header may be older, so both are
// declared here.
constexpr uint8_t kDlpackBool = 6;
struct VersionedTensor {
  uint32_t major, minor;
  void* manager;
  void (*deleter)(VersionedTensor*);
  uint64_t flags;
  DLTensor dl_tensor;
};
constexpr uint64_t kDlpackReadOnly = 1;

template <typename Managed>
void release_managed(void* managed) {
  auto* tensor = static_cast<Managed*>(managed);
  if (tensor->deleter) tensor->deleter(tensor);
}

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

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

py::object loaded_module(const char* name) {
  auto module = py::reinterpret_steal<py::object>(PyImport_GetModule(py::str(name).ptr()));
  if (!module && PyErr_Occurred()) throw py::error_already_set();
  return module;
}

// A masked array exports its memory without the mask. Only subclasses of numpy.ndarray can be
// masked arrays, so direct subclasses of object return at once.
void refuse_masked(py::handle object, const std::string& what) {
  if (Py_TYPE(object.ptr())->tp_base == &PyBaseObject_Type) return;
  py::object masked = loaded_module("numpy.ma");
  if (masked && py::isinstance(object, masked.attr("MaskedArray")))
    raise_invalid(fmt::format(
        "{} is a masked array, and collectives ignore masks. Pass an array that has a value "
        "everywhere: x.filled(value)",
        what));
}

/// Objects of torch that every tensor is checked with; looked up once.
struct Torch {
  py::object tensor, parameter, dispatch, to_dlpack;
};

/// Null while torch is not imported: then no object can be a torch tensor.
const Torch* torch_if_loaded() {
  static const Torch* torch = nullptr;  // guarded by the GIL; outlives the interpreter
  if (torch) return torch;
  py::object module = loaded_module("torch");
  if (!module) return nullptr;
  py::object tensor = module.attr("Tensor");
  Torch found{tensor, module.attr("nn").attr("Parameter"), tensor.attr("__torch_dispatch__"),
              module.attr("utils").attr("dlpack").attr("to_dlpack")};
  return torch = new Torch(std::move(found));
}

void refuse_if_lazy(const Torch& torch, py::handle object, const std::string& what) {
  py::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  if (!type.is(torch.tensor) && !type.is(torch.parameter) &&
      !py::object(type.attr("__torch_dispatch__")).is(torch.dispatch))
    raise_invalid(
        fmt::format("{} is a {}, a class that computes its values from other tensors. Pass such a "
                    "tensor, for instance x.to_local() of a DTensor, or a copy of the values as a "
                    "torch.Tensor",
                    what, type_name(object)));
  if (py::cast<bool>(object.attr("is_neg")()))
    raise_invalid(
        fmt::format("{} is negated when it is read, and its memory holds the values without the "
                    "sign (torch's negative bit). Pass x.resolve_neg()",
                    what));
}

bool is_torch(const Torch& torch, py::handle object) {
  py::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  return type.is(torch.tensor) || type.is(torch.parameter) || py::isinstance(object, torch.tensor);
}

// DLPack before 1.0 cannot say that memory is read-only. Tensors of TensorFlow and JAX are
// read-only, those of torch never are.
void refuse_unless_writable(py::handle object, const py::object& capsule, Access access,
                            const std::string& what) {
  if (access != Access::kWrite || !PyCapsule_IsValid(capsule.ptr(), "dltensor")) return;
  const Torch* torch = torch_if_loaded();
  if (torch && is_torch(*torch, object)) return;
  raise_invalid(
      fmt::format("{} ({}) may be read-only: its DLPack does not say. Pass a NumPy array "
                  "or a torch tensor",
                  what, type_name(object)));
}

/// A DLPack capsule of the object. For torch it uses torch's own to_dlpack(), since __dlpack__ is
/// slow Python code there. to_dlpack() would also export tensors that require a gradient, so those
/// go through __dlpack__, which refuses them. Other libraries are asked for DLPack 1.0, which says
/// whether memory is read-only.
py::object make_capsule(py::handle object, const std::string& what) {
  if (const Torch* torch = torch_if_loaded(); torch && is_torch(*torch, object)) {
    refuse_if_lazy(*torch, object, what);
    if (py::cast<bool>(object.attr("requires_grad"))) return object.attr("__dlpack__")();
    return torch->to_dlpack(object);
  }
  try {
    return object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")();
}

}  // namespace

const char* name_of(rc_dtype dtype) {
  return static_cast<size_t>(dtype) < kNames.size() ? kNames[dtype] : "?";
}

Tensor::Tensor(py::handle object, Access access, const std::string& what, Elements elements)
    : elements_(elements) {
  if (borrow_buffer(object, access, what) || borrow_bfloat16(object, access, what) ||
      borrow_dlpack(object, access, what))
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
    PyErr_Clear();  // NumPy has no format for types such as bfloat16; DLPack may have one
    return false;
  }
  view_.reset(view.release());
  refuse_masked(object, what);
  auto dtype = dtype_of(view_->format ? view_->format : "B", view_->itemsize);
  if (!dtype && !takes_bytes_of(view_->format))
    refuse_dtype(what, fmt::format("\"{}\"", view_->format));
  if (!PyBuffer_IsContiguous(view_.get(), 'C')) refuse_layout(what);
  if (access == Access::kWrite && view_->readonly)
    raise_invalid(fmt::format("{} is read-only ({}). Pass memory that may be written", what,
                              type_name(object)));
  data_ = view_->buf;
  set_elements(dtype, view_->itemsize, view_->len);
  return true;
}

// "O" stands for a Python object, whose bytes mean nothing elsewhere.
bool Tensor::takes_bytes_of(const char* format) const {
  return elements_ == Elements::kAny &&
         std::string_view(format).find('O') == std::string_view::npos;
}

void Tensor::set_elements(std::optional<rc_dtype> dtype, int64_t element_bytes, int64_t bytes) {
  dtype_ = dtype.value_or(RC_UINT8);
  element_bytes_ = dtype ? element_bytes : 1;
  count_ = bytes / element_bytes_;
}

// ml_dtypes gives NumPy a bfloat16 that neither the buffer protocol nor NumPy's DLPack can name. So
// the array is borrowed as uint16, which has the same memory.
bool Tensor::borrow_bfloat16(py::handle object, Access access, const std::string& what) {
  if (!py::hasattr(object, "dtype") || !py::hasattr(object, "view")) return false;
  py::object dtype = object.attr("dtype");
  if (!py::hasattr(dtype, "name")) return false;
  std::string name = py::str(dtype.attr("name"));
  bool is_bfloat16 = name == "bfloat16";
  if (!is_bfloat16) {
    if (!PyObject_CheckBuffer(object.ptr())) return false;
    bool plain = elements_ == Elements::kAny && !py::cast<bool>(dtype.attr("hasobject"));
    if (!plain) refuse_dtype(what, name);
  }
  if (!borrow_buffer(object.attr("view")(is_bfloat16 ? "uint16" : "uint8"), access, what))
    return false;
  if (is_bfloat16) dtype_ = RC_BFLOAT16;
  return true;
}

const DLTensor& Tensor::take(const py::object& capsule, Access access, const std::string& what) {
  // By the protocol, a renamed capsule has passed its deleter to the consumer.
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    if (!managed) throw py::error_already_set();
    managed_ = Managed(managed, release_managed<DLManagedTensor>);
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    return managed->dl_tensor;
  }
  auto* managed =
      static_cast<VersionedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
  managed_ = Managed(managed, release_managed<VersionedTensor>);
  PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
  if (managed->major != 1)
    raise_invalid(fmt::format("{} is offered by version {}.{} of DLPack, and ringcoll reads 1.0",
                              what, managed->major, managed->minor));
  if (access == Access::kWrite && (managed->flags & kDlpackReadOnly))
    raise_invalid(fmt::format("{} is read-only. Pass memory that may be written", what));
  return managed->dl_tensor;
}

bool Tensor::borrow_dlpack(py::handle object, Access access, const std::string& what) {
  if (!py::hasattr(object, "__dlpack__")) return false;
  py::object capsule;
  try {
    capsule = make_capsule(object, what);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt
    if (error.matches(py::module_::import("ringcoll.errors").attr("InvalidArgument"))) throw;
    raise_invalid(fmt::format("{} ({}) cannot be borrowed: {}", what, type_name(object),
                              std::string(py::str(error.value()))));
  }
  refuse_unless_writable(object, capsule, access, what);
  const DLTensor& tensor = take(capsule, access, what);
  if (!on_host(tensor.device))
    raise_invalid(
        fmt::format("{} lies on a device (DLPack device type {}, number {}), and ringcoll works on "
                    "host memory. "
                    "Pass a copy: x.cpu()",
                    what, static_cast<int>(tensor.device.device_type), tensor.device.device_id));
  auto dtype = dtype_of(tensor.dtype);
  bool whole_bytes = tensor.dtype.bits % 8 == 0;
  if (!dtype && !(elements_ == Elements::kAny && whole_bytes))
    refuse_dtype(what,
                 fmt::format("(DLPack code {}, {} bits)", tensor.dtype.code, tensor.dtype.bits));
  if (!contiguous(tensor)) refuse_layout(what);
  int64_t element_bytes = tensor.dtype.bits / 8 * tensor.dtype.lanes;
  int64_t count = 1;
  for (int i = 0; i < tensor.ndim; i++) count *= tensor.shape[i];
  set_elements(dtype, element_bytes, count * element_bytes);
  if (count_ > 0 && !tensor.data)
    raise_invalid(
        fmt::format("{} ({}) has {} elements and no memory that holds them. Pass a copy: x.clone()",
                    what, type_name(object), count_));
  data_ = static_cast<char*>(tensor.data) + tensor.byte_offset;
  return true;
}

}  // namespace ringcoll::python
