#include "python/interpreter.h"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <new>

namespace py = pybind11;

namespace ringcoll::python {
namespace {

// From here on CPython lets nobody make a thread known to it while it forks.
constexpr bool kForksAloneByItself = PY_VERSION_HEX >= 0x030D0000;

class Gate {
 public:
  /// False: it is closed.
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
  /// Returns once no thread is inside, and none will be.
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    // Fewer than none: the process was forked by a thread that was inside.
    left_.wait(lock, [this] { return inside_ <= 0; });
  }

  /// What Python has for a thread that it did not know. Without the GIL. No fork comes between: up
  /// to CPython 3.11 its child waits for ever for the lock that this takes (python/cpython#112275),
  /// and in 3.12 it may find a list half made.
  PyThreadState* make_known() {
    std::lock_guard lock(making_known_);
    PyThreadState* state = PyThreadState_New(PyInterpreterState_Main());
    if (!state) Py_FatalError("ringcoll: no memory to call Python from another thread");
    return state;
  }
  /// Ends what make_known() has begun. Called with the GIL, which it gives back first, since nobody
  /// may wait for the lock with it. No fork comes between here either: where memory is traced, what
  /// frees it holds a lock of tracemalloc's, which a child would wait for.
  void make_unknown(PyThreadState* state) {
    PyThreadState_Clear(state);
    PyEval_ReleaseThread(state);
    std::lock_guard lock(making_known_);
    PyThreadState_Delete(state);
  }
  void before_fork() {
    if (kForksAloneByItself || making_known_.try_lock()) return;
    // Without the GIL: whoever has the lock wants it, where tracemalloc traces what is allocated.
    PyThreadState* state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    making_known_.lock();
    if (state) PyEval_RestoreThread(state);
  }
  void after_fork() {
    if (!kForksAloneByItself) making_known_.unlock();
  }

 private:
  std::mutex making_known_;
  std::mutex mutex_;
  std::condition_variable left_;
  bool closed_ = false;
  int inside_ = 0;
};

unsigned long main_thread = 0;
// Whether the gate counts this thread.
thread_local bool inside = false;

// Never destroyed, since threads of the library outlive main(). A forked child has none of them,
// and begins anew; its only thread is the main one.
Gate& gate() {
  alignas(Gate) static std::byte memory[sizeof(Gate)];
  static Gate* made = [] {
    pthread_atfork([] { gate().before_fork(); }, [] { gate().after_fork(); },
                   [] {
                     new (memory) Gate;
                     main_thread = PyThread_get_thread_ident();
                   });
    return new (memory) Gate;
  }();
  return *made;
}

bool enter() { return inside = gate().enter(); }

void leave() {
  inside = false;
  gate().leave();
}

[[noreturn]] void sleep_for_ever() {
  while (true) ::pause();
}

}  // namespace

void watch_interpreter() {
  main_thread =
      py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  gate();
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    Released released;
    gate().close();
  }));
}

bool is_main_thread() { return PyThread_get_thread_ident() == main_thread; }

Inside::Inside() : entered_(!is_main_thread() && !inside) {
  if (!entered_ || enter()) return;
  PyEval_SaveThread();  // for the thread that ends the interpreter
  sleep_for_ever();
}

Inside::~Inside() {
  if (entered_) leave();
}

// A callback stays inside all the time, for calls may wait for it that the end of the interpreter
// waits for.
Released::Released() : left_(inside && !CalledBack::now()) {
  if (left_) leave();
  state_ = PyEval_SaveThread();
}

// Without an Inside, as where an object is destroyed, the gate is needed for the GIL alone.
Released::~Released() {
  const bool enters = !is_main_thread() && !inside;
  if (enters && !enter()) sleep_for_ever();
  PyEval_RestoreThread(state_);
  if (enters && !left_) leave();
}

Acquired::Acquired() : entered_(!inside) {
  if (entered_ && !enter()) return;
  if (PyGILState_GetThisThreadState()) {
    gil_.emplace();
  } else {
    made_ = gate().make_known();
    PyEval_AcquireThread(made_);
  }
}

Acquired::~Acquired() {
  if (!*this) return;
  gil_.reset();
  if (made_) gate().make_unknown(made_);
  if (entered_) leave();
}

// In the main thread, which the interpreter does not end without.
int Signals::interrupted(void* self) {
  CalledBack called_back;
  py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() == 0) return 0;
  static_cast<Signals*>(self)->raised_.emplace();
  return 1;
}

}  // namespace ringcoll::python
