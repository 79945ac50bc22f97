// Connections that are made beside what their callers do: all of them in one thread, which is there
// only while there are any, so that a peer that does not answer delays no other.
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
#include "bootstrap/connector_state.h"

namespace ringcoll {

/// Any thread.
class Connector::State::Calls {
 public:
  /// `state` outlives it.
  explicit Calls(State& state) : state_(state) {}
  ~Calls() { stop(); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  /// The connection, none if the peer has made it; or why there is none. Throws nothing.
  using Done = std::function<void(Fd, const std::optional<Unmade>&)>;
  /// Connects, and calls `done` on its own thread. Returns at once. False: there is no thread, and
  /// nothing of this happens.
  bool begin(const Target& to, Deadline deadline, Done done);
  /// Until none is in flight, for so long at most.
  void settle(Duration limit);
  /// Begins no more of them, and waits for those in flight, which are interrupted if the connector
  /// is stopping.
  void stop();

 private:
  struct Call {
    Target to;
    Deadline deadline;
    Done done;
  };
  /// By peer and channel.
  using Waiting = std::multimap<std::pair<Rank, uint64_t>, Done>;

  bool start_thread();
  void work();
  void take_asked(Batch& batch, Waiting& waiting);

  State& state_;
  std::mutex mutex_;
  std::condition_variable over_;
  std::deque<Call> asked_;  // and not begun
  bool working_ = false;    // there is a thread
  bool stopping_ = false;
};

}  // namespace ringcoll
