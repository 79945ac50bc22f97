// Makes many connections at the same time, and waits for them.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "connect/dial.h"

namespace ringcoll {

/// One thread, but not that of the event loop.
class Connector::State::Batch {
 public:
  /// Interrupting `group` ends the connections, and so does `deadline`, unless a call() names
  /// others.
  Batch(State& state, GroupNumber group, Deadline deadline);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  /// Connects to a higher rank; waits for a lower rank to connect.
  void dial(Rank peer, uint64_t channel);
  /// Connects, whether the peer is the higher or the lower rank.
  void call(Rank peer, uint64_t channel) { call(target(peer, channel), deadline_); }
  void call(const Target& to, Deadline deadline);
  /// Connects over this network alone. The TCP connection must be made before `reach`.
  void try_network(Rank peer, uint64_t channel, int network, Deadline reach);

  struct Made {
    Rank peer = kNobody;
    uint64_t channel = 0;
    Fd fd;
  };
  // next() and settle_lifelines() do what those of Dials do.
  std::optional<Made> next(Duration limit);
  /// Waits for the only connection of this batch. Throws as next().
  Fd only();
  bool empty() const { return dials_.empty() && ended_.empty(); }
  std::vector<Made> settle_lifelines(Duration limit);

  /// How a connection has ended.
  struct Ended {
    Target to;
    Fd fd;
    std::optional<Unmade> unmade;
  };
  /// Returns a connection that has ended, or nothing after a wake-up without one; call it again
  /// unless empty(). Blocks until a descriptor is ready, a dial is due, or tell_waiting() wakes it.
  std::optional<Ended> step();

 private:
  struct Entry {
    std::unique_ptr<Dial> dial;
    short events = 0;  // returned by the last poll
  };
  /// {the order in which peers were first named, the order in which connections were begun}.
  using Key = std::pair<size_t, size_t>;
  using Entries = std::map<Key, Entry>;

  Target target(Rank peer, uint64_t channel) const { return {peer, channel, group_}; }
  void add(std::unique_ptr<Dial> dial);
  void throw_if_interrupted(const Dial& dial) const;
  void end(Entries::iterator entry, const Error& error);
  void end_interrupted();
  void advance_all();
  std::optional<Ended> pop();
  void sleep(Clock::time_point until);

  State& state_;
  const GroupNumber group_;
  const Deadline deadline_;
  Fd news_;  // an eventfd: a connection was accepted, or a group interrupted
  bool has_news_ = true;
  Permits permits_;
  std::map<Rank, size_t> turns_;
  size_t begun_ = 0;
  Entries dials_;  // destroyed before the permits, which they give back
  std::deque<Ended> ended_;
  std::vector<pollfd> fds_;     // polled by sleep(); the first is news_
  std::vector<Entry*> polled_;  // the owners of the others
};

}  // namespace ringcoll
