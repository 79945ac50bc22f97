// One thread and one epoll: callbacks when a descriptor is ready. Serves listening sockets and
// lifelines, never payload.
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
  /// Starts the thread (all signals blocked in it). Where none can be made throws
  /// Error(kTransport), or goes without and says why in threadless(): then the thread that makes
  /// the loop is the only one to use it, and turns it.
  explicit EventLoop(const char* thread_name, Thread thread = Thread::kNeeded);
  /// Stops and joins. Callbacks that are registered are dropped, not called.
  ~EventLoop();

  /// Calls `ready(events)` on the loop's thread when `fd` is readable (or hung up). The descriptor
  /// stays the caller's. Level-triggered. `ready` must not throw, nor block. Any thread.
  void watch(int fd, std::function<void(uint32_t events)> ready);
  /// Whether `ready` is called also when `fd` can be written (EPOLLOUT); off at first. Any thread.
  void also_writable(int fd, bool on);
  /// No callback for `fd` runs or begins after this returns (called on the loop's thread: after the
  /// current one). Any thread.
  void forget(int fd);
  /// Waits until the callback or task that runs now, if there is one, has returned: for those that
  /// have forgotten themselves and go on. Not on the loop's thread.
  void settle();
  /// Runs `task` once, `delay` from now, on the loop's thread. Any thread.
  void after(Duration delay, std::function<void()> task);
  bool on_loop_thread() const;

  const std::optional<Error>& threadless() const;
  /// Without a thread: waits for so long at most until a callback is due, and runs it here.
  void turn(Duration limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringcoll
