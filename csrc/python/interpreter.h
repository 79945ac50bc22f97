// Threads of this module, signals, and an interpreter that ends under them.
//
// An interpreter that ends stops each thread that asks for its GIL, by pthread_exit() up to CPython
// 3.13 and by a sleep for ever from 3.14 on. In the middle of C++ the first aborts the process. So
// there is a **gate**: a thread that wants the GIL goes through it first, and the interpreter
// closes it before it ends (atexit), and waits for those inside. A daemon thread that comes back
// from a blocking call after that finds the gate closed and sleeps for ever. The main thread, which
// ends the interpreter, needs no gate: it may still close communicators then.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// When the module is imported: the gate will be closed when the interpreter ends.
void watch_interpreter();

/// A thread with the GIL that is in this module. The interpreter does not end meanwhile, but for
/// the time of a Released: other threads may get the GIL while Python code runs. As a
/// py::call_guard.
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool entered_;
};

/// As long as it lives, this thread does not have the GIL: for all that may block. Its end does not
/// return if the interpreter has ended meanwhile.
class Released {
 public:
  Released();
  ~Released();
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  bool left_;
  PyThreadState* state_;
};

/// The GIL for a callback of the library, on whatever thread; unless the interpreter ends.
class Acquired {
 public:
  Acquired();
  ~Acquired();
  Acquired(const Acquired&) = delete;
  Acquired& operator=(const Acquired&) = delete;
  /// False: it ends. Python is not to be touched.
  explicit operator bool() const { return gil_ || made_; }

 private:
  bool entered_;
  // One of the two: of a thread that Python knows, and of one that it knows for so long.
  std::optional<pybind11::gil_scoped_acquire> gil_;
  PyThreadState* made_ = nullptr;
};

/// As long as it lives, the library calls this thread back, which must not wait for calls of the
/// same communicator then.
class CalledBack {
 public:
  CalledBack() { depth++; }
  ~CalledBack() { depth--; }
  CalledBack(const CalledBack&) = delete;
  CalledBack& operator=(const CalledBack&) = delete;
  static bool now() { return depth > 0; }

 private:
  static inline thread_local int depth = 0;
};

/// Whether this is the thread in which Python calls the handlers of signals.
bool is_main_thread();

/// Has handlers of signals called while a blocking call waits, where this is the main thread. What
/// a handler raises ends the call.
class Signals {
 public:
  Signals() = default;
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// For a call that ends before this does: a Call or a Message.
  template <typename Asked>
  void attend(Asked& asked) {
    if (is_main_thread()) asked.set_interrupted(&Signals::interrupted, this);
  }
  /// Throws what a handler has raised. Needs the GIL.
  void raise_if_any() const {
    if (raised_) throw pybind11::error_already_set(*raised_);
  }

 private:
  static int interrupted(void* self);

  std::optional<pybind11::error_already_set> raised_;
};

}  // namespace ringcoll::python
