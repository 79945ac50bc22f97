#include "python/completion.h"

#include <pthread.h>

#include <condition_variable>
#include <new>
#include <utility>

namespace py = pybind11;

namespace ringcoll::python {
namespace {

/// Threads of the library that are in the interpreter, or wait for its GIL. Once it is closed none
/// comes in: an interpreter that ends would stop it there, in the middle of C++.
class Gate {
 public:
  bool enter() {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    inside_++;
    return true;
  }
  void leave() {
    std::lock_guard lock(mutex_);
    inside_--;
    left_.notify_all();
  }
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    // Fewer than none: the process was forked by a function, on the thread that it is on.
    left_.wait(lock, [this] { return inside_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  bool closed_ = false;
  int inside_ = 0;
};

// Never destroyed, since threads of the library outlive main(). A forked child has none of them,
// and begins anew.
Gate& gate() {
  alignas(Gate) static std::byte memory[sizeof(Gate)];
  static Gate* made = [] {
    pthread_atfork(nullptr, nullptr, [] { new (memory) Gate; });
    return new (memory) Gate;
  }();
  return *made;
}

thread_local int in_done = 0;

}  // namespace

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
  in_done++;
  (*held)->run();
  in_done--;
}

bool Completion::is_in_done() { return in_done > 0; }

void Completion::stop_all() {
  py::gil_scoped_release release;
  gate().close();
}

// Functions may add functions.
void Completion::run() {
  while (!nothing_left()) {
    if (!gate().enter()) return leave_to_the_process();
    {
      py::gil_scoped_acquire acquire;
      call_functions();
    }
    gate().leave();
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
    } catch (py::error_already_set& error) {  // not an Exception: those are logged in Python
      error.discard_as_unraisable("a done callback of ringcoll");
    }
  }
}

// Nothing of Python can be freed any more.
void Completion::leave_to_the_process() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  for (py::object& function : functions_) function.release();
  functions_.clear();
  if (borrowed_) new std::shared_ptr<void>(std::move(borrowed_));
}

}  // namespace ringcoll::python
