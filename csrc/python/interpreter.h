// Threads of this module, the GIL, signals, and the end of the interpreter.
//
// An ending interpreter stops every thread that asks for the GIL: by pthread_exit() up to CPython
// 3.13, by an endless sleep from 3.14 on. pthread_exit() inside C++ code aborts the process. So
// this module has a **gate**. A thread passes the gate before it asks for the GIL. An atexit
// handler closes the gate before the interpreter ends, and waits until no thread is inside. A
// daemon thread that later returns from a blocking call finds the gate closed and sleeps for ever.
// The main thread ends the interpreter, so it needs no gate, and may still close communicators
// then.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// Registers the atexit handler that closes the gate. Called when the module is imported.
void watch_interpreter();

/// While it lives, the interpreter does not end, except during a Released. For a thread with the
/// GIL that runs code of this module; used as a py::call_guard. The GIL alone is not enough, since
/// Python code that this thread calls may release it.
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool entered_;
};

/// While it lives, this thread does not hold the GIL. Code that may block runs in it. The
/// destructor does not return in a thread that finds the gate closed.
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

/// Takes the GIL for a callback of the library, on any thread, unless the interpreter ends.
class Acquired {
 public:
  Acquired();
  ~Acquired();
  Acquired(const Acquired&) = delete;
  Acquired& operator=(const Acquired&) = delete;
  /// False if the interpreter ends: then the callback must not use Python.
  explicit operator bool() const { return gil_ || made_; }

 private:
  bool entered_;
  // One of the two is set.
  std::optional<pybind11::gil_scoped_acquire> gil_;  // for a thread that Python knows
  PyThreadState* made_ = nullptr;  // for others, made for the time of the callback
};

/// While it lives, this thread is in a callback of the library. So it must not wait for calls of
/// the same communicator.
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

/// Whether this is the main thread, where Python runs signal handlers.
bool is_main_thread();

/// Runs Python's signal handlers while a blocking call of the main thread waits. If a handler
/// raises, the call ends.
class Signals {
 public:
  Signals() = default;
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// `asked` is a Call or a Message. It must end before this object is destroyed.
  template <typename Asked>
  void attend(Asked& asked) {
    if (is_main_thread()) asked.set_interrupted(&Signals::interrupted, this);
  }
  /// Throws what a handler has raised, if anything. Needs the GIL.
  void raise_if_any() const {
    if (raised_) throw pybind11::error_already_set(*raised_);
  }

 private:
  static int interrupted(void* self);

  std::optional<pybind11::error_already_set> raised_;
};

}  // namespace ringcoll::python
