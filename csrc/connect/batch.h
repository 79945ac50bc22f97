// Makes many connections at the same time, and waits for them. All are begun together and complete
// in any order, so many peers that answer late take no longer than one. A connection depends only
// on the event loop of the peer, so ranks that connect to one another cannot deadlock.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "connect/dial.h"

namespace ringcoll {

/// One thread, but not that of the event loop.
class Connector::State::Batch {
 public:
  explicit Batch(State& state) : state_(state), permits_(kMostInFlight) {}
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  /// Connects, or waits for the peer to connect, as `ends` says. Interrupting the group of `to`
  /// ends it, and so does the deadline.
  void add(const Target& to, Ends ends, Deadline deadline);
  /// Connects over this network alone. The TCP connection must be made before `reach`.
  void try_network(const Target& to, int network, Deadline reach, Deadline deadline);

  bool empty() const { return dials_.empty() && ended_.empty(); }

  /// How a connection has ended.
  struct Ended {
    size_t number;  // counted from 0 in the order of add()
    Fd fd;
    std::optional<Unmade> unmade;
  };
  /// Returns a connection that has ended, or nothing after a wake-up without one; call it again
  /// unless empty(). Blocks until a descriptor is ready, a dial is due, or tell_waiting() wakes it.
  std::optional<Ended> step();
  /// Waits for the only connection of this batch. Throws as Connector::dial().
  Fd only();

 private:
  struct Entry {
    std::unique_ptr<Dial> dial;
    short events = 0;  // returned by the last poll
  };
  using Entries = std::map<size_t, Entry>;  // by number

  void add(std::unique_ptr<Dial> dial);
  void end(Entries::iterator entry, const Error& error);
  void end_interrupted();
  void advance_all();
  void sleep();

  State& state_;
  Fd news_;  // an eventfd: a connection was accepted, or a group interrupted
  bool has_news_ = true;
  Permits permits_;
  size_t begun_ = 0;
  Entries dials_;  // destroyed before the permits, which they give back
  std::deque<Ended> ended_;
  std::vector<pollfd> fds_;     // polled by sleep(); the first is news_
  std::vector<Entry*> polled_;  // the owners of the others
};

}  // namespace ringcoll
