// Which worker is at which clock.
//
// A worker counts its steps by clocks, from 0 on: it pulls, pushes and finishes the clock. A clock
// is complete when all workers have finished it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace ringcoll {

class Clocks {
 public:
  Clocks(std::string table, std::optional<int64_t> staleness, std::optional<int64_t> quorum)
      : table_(std::move(table)), staleness_(staleness), quorum_(quorum) {}

  /// All clocks below are complete; it is the first one that is not. It never goes back.
  int64_t current() const { return current_; }
  /// Worker -> the clock that it is at: it has finished all below.
  const std::map<int64_t, int64_t>& workers() const { return workers_; }
  std::optional<int64_t> clock_of(int64_t worker) const;

  /// Which clock must be complete before a worker at this clock may be answered; nothing if that is
  /// so already. With a staleness of s a pull at clock c waits for all clocks below c - s.
  std::optional<int64_t> waits_for(int64_t clock) const;

  /// A worker joins at the current clock, or at `clock` if that is later. One that is there goes on
  /// to `clock`, if it is not that far. Before the first clock, all workers have to join, since
  /// those that are missing do not count.
  void join(int64_t worker, int64_t clock = 0) {
    int64_t& own = workers_.try_emplace(worker, current_).first->second;
    own = std::max(own, clock);
  }
  /// It no longer counts.
  void leave(int64_t worker) { workers_.erase(worker); }
  /// Throws Error(kInvalidArgument) unless a worker may push to this clock, or finish it: it is the
  /// worker's own clock, one before it, or one up to the current clock, if a quorum has left the
  /// worker behind.
  void check_clock(int64_t worker, int64_t clock) const;
  /// The worker finishes the clock, and those below. Nothing happens if it has done so before.
  /// Precondition: check_clock() was called.
  void tick(int64_t worker, int64_t clock);
  /// The time of grace of the clock has passed: it is complete with a quorum of workers.
  void end_grace(int64_t clock);

  /// Whether the worker has finished the clock, or is not there.
  bool has_finished(int64_t worker, int64_t clock) const;
  /// Whether a quorum has finished the current clock: its time of grace runs.
  bool has_quorum() const;
  /// Makes the first clock that is not complete the current one.
  void complete();

  /// The last clock whose time of grace has passed; -1 if none has.
  int64_t grace_ended() const { return grace_ended_; }
  /// Makes them what they were: workers() and their clocks, current() and grace_ended().
  void restore(const std::map<int64_t, int64_t>& workers, int64_t current, int64_t grace_ended);

 private:
  std::string table_;
  std::optional<int64_t> staleness_, quorum_;
  std::map<int64_t, int64_t> workers_;
  int64_t current_ = 0;
  int64_t grace_ended_ = -1;  // for this clock, and those below
};

}  // namespace ringcoll
