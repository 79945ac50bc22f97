// Connections that are made in the background. One thread makes all of them, so a peer that does
// not answer delays no other. The thread exists only while there are connections to make.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"
#include "connect/connector_state.h"

namespace ringcoll {

/// Any thread.
class Connector::State::Calls {
 public:
  /// `state` outlives it.
  explicit Calls(State& state) : state_(state) {}
  ~Calls() { stop(); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  /// Gets the connection, which is empty if the peer has made it, or why it was not made. Must not
  /// throw.
  using Done = std::function<void(Fd, const std::optional<Unmade>&)>;
  /// Connects, and calls `done` on the background thread. Returns at once. False after stop(), or
  /// if no thread can be started; `done` is not called then.
  bool begin(const Target& to, Deadline deadline, Done done);
  /// Waits until no connection is being made, at most for `limit`.
  void settle(Duration limit);
  /// Refuses new connections and waits for those in flight. They are interrupted if the connector
  /// is stopping.
  void stop();

 private:
  struct Call {
    Target to;
    Deadline deadline;
    Done done;
  };
  /// The callbacks of connections in flight, by peer and channel.
  using Waiting = std::multimap<std::pair<Rank, uint64_t>, Done>;

  bool start_thread();
  void work();
  void take_asked(Batch& batch, Waiting& waiting);

  State& state_;
  std::mutex mutex_;
  std::condition_variable over_;
  std::deque<Call> asked_;  // requested and not begun
  bool working_ = false;    // the thread exists
  bool stopping_ = false;
};

}  // namespace ringcoll
