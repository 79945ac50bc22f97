// One collective call as Python states it: names, objects and counts, checked and turned into an
// rc_call.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "python/tensor.h"
#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// Elements of one rank's part, per rank; nothing: all parts are equal.
using Counts = std::optional<std::vector<int64_t>>;

struct CallArguments {
  std::string collective;
  std::string op;
  int root = 0;
  pybind11::sequence inputs;   // None where this rank has none
  pybind11::sequence outputs;  // as many as inputs; None likewise
  Counts counts;
  Counts recv_counts;
  double prescale = 1;
  double postscale = 1;
  double timeout_s = 0;
};

/// Holds what it borrows until it is destroyed, which needs the GIL.
class Call {
 public:
  /// Raises InvalidArgument if names are unknown, ranks or counts are out of range, types differ or
  /// a tensor has not the size that the collective needs.
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
  // The vectors' memory, which call_ points to, stays where it is when a Call is moved.
  std::vector<Tensor> tensors_;
  std::vector<rc_buffer> buffers_;
  Counts counts_;
  Counts recv_counts_;
};

}  // namespace ringcoll::python
