// The thread that makes the connections of a connector. It makes all of them at the same time, so a
// peer that does not answer delays no other. It exists only while there are connections to make.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "connect/connector_state.h"

namespace ringcoll {

/// Any thread.
class Connector::State::Worker {
 public:
  /// `state` outlives it.
  explicit Worker(State& state) : state_(state) {}
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Makes the connection, and calls `done` on the thread. Returns at once. After stop(), or if no
  /// thread can be started, calls `done` with an error before it returns.
  void begin(const Target& to, Ends ends, Deadline deadline, Done done);
  /// Waits until no connection is being made, at most for `limit`.
  void settle(Duration limit);
  /// Refuses new connections and waits for those in flight. They are interrupted if the connector
  /// is stopping.
  void stop();

 private:
  struct Wanted {
    Target to;
    Ends ends;
    Deadline deadline;
    Done done;
  };

  void work();
  void take_wanted(Batch& batch);

  State& state_;
  std::mutex mutex_;
  std::condition_variable over_;
  std::deque<Wanted> wanted_;       // not begun
  std::map<size_t, Done> waiting_;  // of those in flight, by their number in the batch
  size_t begun_ = 0;                // in the batch
  bool working_ = false;            // the thread exists
  bool stopping_ = false;
};

}  // namespace ringcoll
