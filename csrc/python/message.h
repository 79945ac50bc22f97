// Makes an rc_message of the arguments of a send or receive from Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "python/tensor.h"
#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

struct MessageArguments {
  pybind11::object buffer;
  int64_t peer = 0;
  int64_t tag = 0;
  double timeout_s = 0;
};

/// Borrows its buffer until it is destroyed. Making and destroying it needs the GIL.
class Message {
 public:
  /// Raises InvalidArgument if the buffer cannot be borrowed, or a number does not fit the C ABI.
  Message(const MessageArguments& arguments, bool receives);

  const rc_message& get() const { return message_; }
  int64_t element_bytes() const { return tensor_.element_bytes(); }
  void set_done(rc_done_fn done, void* state) {
    message_.done = done;
    message_.done_state = state;
  }
  void set_interrupted(rc_interrupted_fn interrupted, void* state) {
    message_.interrupted = interrupted;
    message_.interrupted_state = state;
  }

 private:
  Tensor tensor_;
  rc_message message_ = {};
};

}  // namespace ringcoll::python
