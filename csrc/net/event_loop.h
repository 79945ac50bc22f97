// One thread with one epoll, which calls back when a descriptor is ready. In a mesh it serves the
// start of a job, listening sockets and lifelines, never payload. An agent has one of its own
// (remote/network.h), which also serves payload.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"

namespace ringcoll {

class EventLoop {
 public:
  enum class Thread : uint8_t { kNeeded, kIfThereIsOne };
  /// Starts the thread, with all signals blocked. If no thread can be started, kNeeded throws
  /// Error(kTransport). kIfThereIsOne goes without and says why in threadless(). Then only the
  /// thread that constructs the loop may use it, and it must call turn().
  explicit EventLoop(const char* thread_name, Thread thread = Thread::kNeeded);
  /// Stops and joins the thread. Registered callbacks are dropped, not called.
  ~EventLoop();

  /// Calls `ready(events)` on the loop's thread while `fd` is readable or hung up
  /// (level-triggered). The caller keeps the descriptor. `ready` must neither throw nor block. Any
  /// thread.
  void watch(int fd, std::function<void(uint32_t events)> ready);
  /// Sets whether `ready` is also called while `fd` is writable (EPOLLOUT); off at first. Any
  /// thread.
  void also_writable(int fd, bool on);
  /// No callback for `fd` runs or begins after this returns. If a callback itself calls this, that
  /// callback is the last. Any thread.
  void forget(int fd);
  /// Waits until the callback or task that runs now, if any, has returned. It may have called
  /// forget() for its own descriptor and still be running. Not on the loop's thread.
  void settle();
  /// Runs `task` once, `delay` from now, on the loop's thread. Any thread.
  void after(Duration delay, std::function<void()> task);
  bool on_loop_thread() const;

  const std::optional<Error>& threadless() const;
  /// For a loop without a thread: waits at most `limit` until callbacks are due, and runs them
  /// here.
  void turn(Duration limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringcoll
