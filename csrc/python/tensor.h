// Borrows the memory of a Python object, by the buffer protocol or by DLPack.
#pragma once

#include <dlpack/dlpack.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

enum class Access { kRead, kWrite };
/// Which element types are taken: those of collectives, or any that are plain bytes, which count as
/// uint8 unless they are of collectives.
enum class Elements { kOfCollectives, kAny };

/// Contiguous host memory of one element type. The memory is valid while the Tensor lives. Making
/// and destroying it needs the GIL.
class Tensor {
 public:
  /// `what` names the object in messages: "input 0". Raises InvalidArgument if the object offers no
  /// memory, or if the memory is not contiguous, is on a device, has an element type that no
  /// rc_dtype names, or is read-only (for kWrite). Also raises it if the memory does not hold the
  /// object's values, as for a lazily negated tensor or a masked array.
  Tensor(pybind11::handle object, Access access, const std::string& what,
         Elements elements = Elements::kOfCollectives);

  void* data() const { return data_; }
  int64_t count() const { return count_; }
  int64_t bytes() const { return count_ * element_bytes_; }
  int64_t element_bytes() const { return element_bytes_; }
  rc_dtype dtype() const { return dtype_; }

 private:
  struct BufferRelease {
    void operator()(Py_buffer* view) const {
      PyBuffer_Release(view);
      delete view;
    }
  };
  /// Owns a DLManagedTensor or a VersionedTensor.
  using Managed = std::unique_ptr<void, void (*)(void*)>;

  bool borrow_buffer(pybind11::handle object, Access access, const std::string& what);
  bool borrow_bfloat16(pybind11::handle object, Access access, const std::string& what);
  bool borrow_dlpack(pybind11::handle object, Access access, const std::string& what);
  /// Takes the tensor out of a DLPack capsule. This object then owns it.
  const DLTensor& take(const pybind11::object& capsule, Access access, const std::string& what);

  bool takes_bytes_of(const char* format) const;
  /// `dtype`: none for elements that are not of collectives.
  void set_elements(std::optional<rc_dtype> dtype, int64_t element_bytes, int64_t bytes);

  const Elements elements_;
  void* data_ = nullptr;
  int64_t count_ = 0;
  int64_t element_bytes_ = 1;
  rc_dtype dtype_ = RC_UINT8;
  std::unique_ptr<Py_buffer, BufferRelease> view_;
  Managed managed_{nullptr, nullptr};
};

/// The name of an element type, such as "float32"; "?" for a value out of range.
const char* name_of(rc_dtype dtype);

}  // namespace ringcoll::python
