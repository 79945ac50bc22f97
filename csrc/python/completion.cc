#include "python/completion.h"

#include <utility>

#include "python/interpreter.h"

namespace py = pybind11;

namespace ringcoll::python {

bool Completion::add(py::object function) {
  std::lock_guard lock(mutex_);
  if (ended_) return false;
  functions_.push_back(std::move(function));
  return true;
}

bool Completion::adopt(std::shared_ptr<rc_request>& request, std::shared_ptr<void>& borrowed) {
  std::lock_guard lock(mutex_);
  if (ended_) return false;
  request_ = std::move(request);
  borrowed_ = std::move(borrowed);
  return true;
}

void Completion::done(void* state, rc_request*, rc_status) {
  std::unique_ptr<std::shared_ptr<Completion>> held(
      static_cast<std::shared_ptr<Completion>*>(state));
  CalledBack called_back;
  (*held)->run();
}

// Repeats, since the functions may add functions.
void Completion::run() {
  while (!nothing_left()) {
    Acquired gil;
    if (!gil) return leave_to_the_process();
    call_functions();
  }
}

bool Completion::nothing_left() {
  std::lock_guard lock(mutex_);
  ended_ = functions_.empty() && !borrowed_;
  return ended_;
}

void Completion::call_functions() {
  std::vector<py::object> functions;
  std::shared_ptr<rc_request> request;
  std::shared_ptr<void> borrowed;
  {
    std::lock_guard lock(mutex_);
    functions.swap(functions_);
    request.swap(request_);
    borrowed.swap(borrowed_);
  }
  for (py::object& function : functions) {
    try {
      function();
    } catch (py::error_already_set& error) {  // the Python callback logs every Exception itself
      if (is_main_thread() && error.matches(PyExc_KeyboardInterrupt))
        PyErr_SetInterrupt();  // raises it again in the code of the main thread
      else
        error.discard_as_unraisable("a done callback of ringcoll");
    }
  }
}

// The interpreter ends, so Python objects can no longer be freed. They leak on purpose.
void Completion::leave_to_the_process() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  for (py::object& function : functions_) function.release();
  functions_.clear();
  if (borrowed_) new std::shared_ptr<void>(std::move(borrowed_));
}

}  // namespace ringcoll::python
