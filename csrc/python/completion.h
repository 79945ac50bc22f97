// Python functions that a thread of the library calls when a call has ended.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <vector>

#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// What remains to be done in Python when a call or message ends. The library's thread takes the
/// GIL only if there is something to do.
class Completion {
 public:
  /// Registers a function to be called when the call has ended. Returns false if it has ended: then
  /// the caller calls the function. Needs the GIL.
  bool add(pybind11::object function);
  /// Takes over an abandoned request and the tensors that it borrows, and frees both when it has
  /// ended. Returns false, and moves nothing, if it has ended. Needs the GIL.
  bool adopt(std::shared_ptr<rc_request>& request, std::shared_ptr<void>& borrowed);

  /// The rc_done_fn for rc_call and rc_message. `state` is a new std::shared_ptr<Completion>, which
  /// this function deletes.
  static void done(void* state, rc_request* request, rc_status status);

 private:
  void run();
  bool nothing_left();
  void call_functions();
  void leave_to_the_process();

  std::mutex mutex_;  // never held while Python code runs
  bool ended_ = false;
  std::vector<pybind11::object> functions_;
  std::shared_ptr<rc_request> request_;
  std::shared_ptr<void> borrowed_;
};

}  // namespace ringcoll::python
