// Waits for connections that are made at the same time.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bootstrap/dial.h"

namespace ringcoll {

/// One thread, which may be any but the loop's.
class Connector::State::Batch {
 public:
  /// `group`: where they are interrupted, and `deadline`: of those that are not given others.
  Batch(State& state, GroupNumber group, Deadline deadline);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  /// Connects to a higher rank, waits for a lower one.
  void dial(Rank peer, uint64_t channel);
  /// Connects, to whichever.
  void call(Rank peer, uint64_t channel) { call(target(peer, channel), deadline_); }
  void call(const Target& to, Deadline deadline);
  /// Connects to a higher rank over this network.
  void try_network(Rank peer, uint64_t channel, int network, Deadline reach);

  struct Made {
    Rank peer = kNobody;
    uint64_t channel = 0;
    Fd fd;
  };
  // As those of Dials.
  std::optional<Made> next(Duration limit);
  /// The only one.
  Fd only();
  bool empty() const { return dials_.empty() && ended_.empty(); }
  std::vector<Made> settle_lifelines(Duration limit);

  /// How one has ended.
  struct Ended {
    Target to;
    Fd fd;
    std::optional<Unmade> unmade;
  };
  /// One that has ended. None: it is to be called again, unless this is empty(). Blocks until
  /// something has happened, be it that those who wait are told to look (tell_waiting()).
  std::optional<Ended> step();

 private:
  struct Entry {
    std::unique_ptr<Dial> dial;
    short events = 0;  // of the last poll
  };
  /// By the turn of their peers, in which they are named, and then in which they were begun.
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
  Fd news_;  // readable when there is news of what was accepted, or interrupted
  bool has_news_ = true;
  Permits permits_;
  std::map<Rank, size_t> turns_;
  size_t begun_ = 0;
  Entries dials_;  // after the permits
  std::deque<Ended> ended_;
  std::vector<pollfd> fds_;     // that sleep() polls,
  std::vector<Entry*> polled_;  // and whose they are, from the second on
};

}  // namespace ringcoll
