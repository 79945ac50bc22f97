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

// From 3.13 on, CPython itself keeps threads from registering with it during a fork.
constexpr bool kForksAloneByItself = PY_VERSION_HEX >= 0x030D0000;

class Gate {
 public:
  /// False if the gate is closed.
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
  /// Returns once no thread is inside. None enters afterwards.
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    // Negative in a forked child whose thread was inside the gate of the parent: it leaves the new
    // gate without having entered it.
    left_.wait(lock, [this] { return inside_ <= 0; });
  }

  /// Registers this thread with Python and returns its state. The thread must not hold the GIL. No
  /// fork happens meanwhile: up to CPython 3.11 the child would wait for ever for a lock that is
  /// taken here (python/cpython#112275), and in 3.12 it may find an inconsistent list.
  PyThreadState* make_known() {
    std::lock_guard lock(making_known_);
    PyThreadState* state = PyThreadState_New(PyInterpreterState_Main());
    if (!state) Py_FatalError("ringcoll: no memory to call Python from another thread");
    return state;
  }
  /// Undoes make_known(). Called with the GIL. It releases the GIL first, since a thread must not
  /// wait for making_known_ with it. No fork happens meanwhile: the deletion may take a lock of
  /// tracemalloc, and a child would wait for that lock for ever.
  void make_unknown(PyThreadState* state) {
    PyThreadState_Clear(state);
    PyEval_ReleaseThread(state);
    std::lock_guard lock(making_known_);
    PyThreadState_Delete(state);
  }
  void before_fork() {
    if (kForksAloneByItself || making_known_.try_lock()) return;
    // Waits without the GIL: with tracemalloc, the thread that has the lock needs the GIL.
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
// Whether this thread has entered the gate.
thread_local bool inside = false;

// Never destroyed, since threads of the library outlive main(). A forked child has none of these
// threads, so it gets a new gate, and its only thread is its main thread.
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
  PyEval_SaveThread();  // lets the thread that ends the interpreter have the GIL
  sleep_for_ever();
}

Inside::~Inside() {
  if (entered_) leave();
}

// A callback stays inside the gate: calls inside the gate may wait for the callback, and the end of
// the interpreter waits for these calls.
Released::Released() : left_(inside && !CalledBack::now()) {
  if (left_) leave();
  state_ = PyEval_SaveThread();
}

// Without an Inside, as in the destructor of a Python object, the thread passes the gate only while
// it takes the GIL.
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

// Runs in the main thread, so the interpreter cannot end meanwhile.
int Signals::interrupted(void* self) {
  CalledBack called_back;
  py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() == 0) return 0;
  static_cast<Signals*>(self)->raised_.emplace();
  return 1;
}

}  // namespace ringcoll::python
