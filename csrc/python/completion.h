// Python functions that are called when a call has ended, by the thread of the library.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <vector>

#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// What is to be done at the end of one call or message. The library's thread takes the GIL only
/// where there is something.
class Completion {
 public:
  /// The functions wait until the call has ended. False if it has: call yours yourself. With the
  /// GIL.
  bool add(pybind11::object function);
  /// Keeps a request that nobody has any more, and what it borrows, until it has ended. False if it
  /// has: then nothing is moved. With the GIL.
  bool adopt(std::shared_ptr<rc_request>& request, std::shared_ptr<void>& borrowed);

  /// rc_call.done, rc_message.done; `state` is a new std::shared_ptr<Completion>.
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
