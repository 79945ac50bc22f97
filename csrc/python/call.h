// Checks the arguments of a collective call from Python (names, objects, counts) and makes an
// rc_call of them.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "python/tensor.h"
#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// The names of all collectives.
std::vector<std::string> collectives();

/// Elements of each rank's part, by rank. Empty optional: all parts are equal.
using Counts = std::optional<std::vector<int64_t>>;

struct CallArguments {
  std::string collective;
  std::string op;
  int root = 0;
  pybind11::sequence inputs;   // tensors; None where this rank has no input
  pybind11::sequence outputs;  // as many as inputs; None where this rank has no output
  Counts counts;
  Counts recv_counts;
  double prescale = 1;
  double postscale = 1;
  double timeout_s = 0;
};

/// Borrows its tensors until it is destroyed. Making and destroying it needs the GIL.
class Call {
 public:
  /// Raises InvalidArgument for an unknown name, a rank or count out of range, tensors of different
  /// types, or a tensor of the wrong size for the collective.
  Call(const CallArguments& arguments, int rank, int size);

  const rc_call& get() const { return call_; }
  void set_done(rc_done_fn done, void* state) {
    call_.done = done;
    call_.done_state = state;
  }
  void set_interrupted(rc_interrupted_fn interrupted, void* state) {
    call_.interrupted = interrupted;
    call_.interrupted_state = state;
  }

 private:
  void borrow(const CallArguments& arguments, int rank, int size);
  void borrow_pair(const pybind11::object& input, const pybind11::object& output,
                   const std::string& prefix, const std::string& suffix, int rank, int size);
  const Tensor& take(pybind11::handle object, Access access, const std::string& what);

  rc_call call_ = {};
  std::optional<rc_dtype> dtype_;
  // call_ points into these vectors. Their memory stays in place when a Call is moved.
  std::vector<Tensor> tensors_;
  std::vector<rc_buffer> buffers_;
  Counts counts_;
  Counts recv_counts_;
};

}  // namespace ringcoll::python
