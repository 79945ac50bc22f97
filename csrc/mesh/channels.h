// The channels of a group: one to each peer, made on demand, and waiting for them, with deadlines.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "transport/transport.h"

namespace ringcoll {

class Group;

/// How long a rank that leaves waits for its last messages to be with those who are still there.
constexpr Duration kLongestDrain = std::chrono::seconds(1);

/// Counted by one thread at a time, read by any.
class Count {
 public:
  Count() = default;
  Count(const Count& other) : value_(other) {}
  Count& operator=(const Count& other) {
    value_.store(other, std::memory_order_relaxed);
    return *this;
  }
  Count& operator+=(uint64_t more) {
    value_.store(*this + more, std::memory_order_relaxed);
    return *this;
  }
  operator uint64_t() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// One thread at a time, but for what is said of others.
class Channels {
 public:
  /// `group` outlives them.
  explicit Channels(Group& group);
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  /// The one deadline of all waits from here on; without one each has the time of
  /// RINGCOLL_TIMEOUT_S for itself.
  void set_deadline(std::optional<Deadline> deadline) { deadline_ = deadline; }
  /// Connects to those of `peers` that are not connected yet, to all at once: it dials the higher
  /// ranks, whose event loops answer without their main threads, and waits for the lower ones; so
  /// ranks that connect to one another cannot deadlock. Who does not come is named in that order.
  /// `doing`: what needs them, for the log.
  void connect(
      std::span<const Rank> peers,
      const std::function<std::string()>& doing = [] { return "setting up links"; });
  /// The one to a peer that is connected.
  Endpoint& operator[](Rank peer) { return *channels_[peer]; }
  /// Hands queued sends to the operating system, so that peers get them while this rank does
  /// something else.
  void flush(const std::function<std::string()>& doing);
  /// Before this rank leaves: moves what is queued, and waits for what peers cannot do without, for
  /// a second at most.
  void finish();
  /// Polls, then blocks, until ready() is true. Moves the other channels' sends meanwhile. Throws
  /// the poison, or at the deadline poisons with Timeout blaming the rank that does not answer;
  /// `doing` is called for the message only. `bytes`: that a peer on the host copies meanwhile; it
  /// polls for as much longer.
  template <typename Ready, typename Doing>
  void wait(Rank peer, Ready&& ready, Doing&& doing, uint64_t bytes = 0) {
    bool gives_way = gives_way_ && bytes <= kMostAtOnce;
    for (int i = gives_way ? kFirstTurns : first_polls(peer); i > 0; i--) {
      if (ready()) return;
      if (gives_way) ::sched_yield();
    }
    wait_slowly(peer, std::ref(ready), std::ref(doing), bytes);
  }
  /// Makes a wait in another thread look again. Any thread.
  void wake();
  /// The same, if it has stopped polling.
  void wake_if_blocked() {
    if (blocked_) wake();
  }
  /// Whether a wait has stopped polling: what comes after its next look is a sleep.
  bool blocked() const { return blocked_; }
  /// Whether flush() would have something to wait for.
  bool busy() const;
  /// Of all that are connected, as Endpoint::revoke().
  void revoke() noexcept;

  /// How long a wait polls before it blocks; for bytes that a peer on the host copies meanwhile as
  /// much longer.
  Duration spin(uint64_t bytes = 0) const;
  void set_spin(Duration spin) { spin_ = spin; }
  /// Whether this rank shares CPUs with others: polling gives the CPU away.
  bool yields() const { return yield_; }
  // Read by any thread.
  const Count& blocked_waits() const { return blocked_waits_; }  // that stopped polling
  void forget_counts() { blocked_waits_ = {}; }

 private:
  static constexpr int kFirstPolls = 64;
  /// Polls before the first look at the clock. A poll of tcp is a system call: on a CPU that ranks
  /// share, 64 of them keep the peer from running for 100 us before they give way.
  int first_polls(Rank peer) const { return yield_ && by_network_[peer] ? 1 : kFirstPolls; }
  /// Where ranks share CPUs, and all of them memory, what is short is there, or its sender has to
  /// run first: the CPU is given away so many times before anything else is looked at. What is
  /// longer may be being copied, and is worth polls.
  static constexpr int kFirstTurns = 8;
  static constexpr uint64_t kMostAtOnce = 4096;

  void add(Rank peer, std::unique_ptr<Endpoint> channel);
  void set_up(Rank peer, bool (Endpoint::*step)(Deadline), Deadline deadline);
  void wait_slowly(Rank peer, const std::function<bool()>& ready,
                   const std::function<std::string()>& doing, uint64_t bytes);
  bool progress_others(const Endpoint* but);
  void drain(Rank peer, Deadline deadline);

  Group& group_;
  std::vector<std::unique_ptr<Endpoint>> channels_;  // by peer
  std::vector<Rank> connected_;
  std::vector<bool> by_network_;  // by peer
  mutable std::mutex mutex_;      // adding a channel against wake() of another thread
  bool yield_;
  bool gives_way_ = false;
  Duration spin_;
  std::optional<Deadline> deadline_;  // of all waits of a call
  std::atomic<bool> blocked_ = false;
  Count blocked_waits_;
};

}  // namespace ringcoll
