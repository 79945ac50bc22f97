// One send or receive as Python states it, turned into an rc_message.
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

/// Holds what it borrows until it is destroyed, which needs the GIL.
class Message {
 public:
  /// Raises InvalidArgument if the buffer cannot be borrowed, or a number is none of the C ABI's.
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
