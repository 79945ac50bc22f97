// The channels of a group, one to each peer. They are made on demand, and waits for them have
// deadlines.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/long_wait.h"
#include "life/farewell.h"
#include "mesh/group/opening.h"
#include "transport/transport.h"
#include "transport/wait_set.h"

namespace ringcoll {

class Group;

/// How long a rank that leaves a group waits until the remaining ranks have its last messages.
constexpr Duration kLongestDrain = std::chrono::seconds(1);

/// A counter that one thread at a time changes and any thread reads.
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

/// One thread at a time, unless a method says otherwise.
class Channels {
 public:
  /// How long one wait has lasted. A caller that leaves a wait and comes back keeps it.
  struct Patience {
    explicit Patience(Duration limit) : deadline(limit) {}
    Deadline deadline;
    Clock::time_point seen = Clock::now();  // by the last iteration
    LongWait long_wait{seen};
    Farewell farewell;
  };

  /// `group` outlives this object.
  explicit Channels(Group& group);
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  /// Sets one deadline for all later waits together. Without it each wait has RINGCOLL_TIMEOUT_S
  /// for itself.
  void set_deadline(std::optional<Deadline> deadline) { deadline_ = deadline; }
  /// Sets a time at which a sleeping wait checks its condition again. Without one, it is early
  /// enough to check at the next message.
  void wake_at(std::optional<Clock::time_point> time) { wake_at_ = time; }
  /// Connects to all of `peers` that are not connected yet, at the same time. It dials the higher
  /// ranks, whose event loops answer without their main threads, and waits for the lower ones, so
  /// ranks that connect to one another cannot deadlock. Errors name the first missing rank in that
  /// order. `doing` describes the caller for the log.
  void connect(
      std::span<const Rank> peers,
      const std::function<std::string()>& doing = [] { return "setting up links"; });
  /// Precondition: the peer is connected.
  Endpoint& operator[](Rank peer) { return *channels_[peer]; }
  /// The same channel as a HostLink; null if it is not within a host. Precondition: the peer is
  /// connected.
  HostLink* host_link(Rank peer) { return host_links_[peer]; }
  /// Passes queued sends to the operating system, so that peers get them while this rank does
  /// something else. False if `leaves` returned true meanwhile.
  bool flush(
      const std::function<std::string()>& doing,
      const std::function<bool()>& leaves = [] { return false; },
      std::optional<Patience>* patience = nullptr);
  /// Called before this rank leaves. Moves queued sends for 5 s at most, then waits up to
  /// kLongestDrain until peers have what they depend on.
  void finish();
  /// Polls, then blocks, until ready() is true; meanwhile the other channels' sends progress.
  /// Throws the group's error if it is poisoned, and PeerLost if the peer has left the group. At
  /// the deadline it poisons the group with Timeout, which blames the rank that does not answer.
  /// `doing` is called only for a message. `bytes`: how much a peer on the host may be copying; the
  /// wait polls longer for it. `patience` is for a caller that may leave the wait and come back; it
  /// is set once the wait has polled for long.
  template <typename Ready, typename Doing>
  void wait(Rank peer, Ready&& ready, Doing&& doing, uint64_t bytes = 0,
            std::optional<Patience>* patience = nullptr) {
    for (int i = 0; i < kFirstPolls; i++) {
      if (ready()) return;
      if (yields()) ::sched_yield();
    }
    std::optional<Patience> own;
    wait_slowly(peer, std::ref(ready), std::ref(doing), bytes, patience ? *patience : own);
  }
  /// Sleeps until something that was just looked for in vain may be there, at most 1 ms.
  void rest();
  /// Makes a wait in another thread check its condition again. Any thread.
  void wake() { set_.wake(); }
  /// As wake(), but only if that wait has stopped polling.
  void wake_if_blocked() {
    if (blocked_) wake();
  }
  /// True if a wait has stopped polling: after one more check it sleeps.
  bool blocked() const { return blocked_; }
  /// Calls Endpoint::revoke() of all connected channels.
  void revoke() noexcept;

  /// How long a wait polls before it blocks. The time grows with the bytes that a peer on the host
  /// may be copying.
  Duration spin(uint64_t bytes = 0) const;
  void set_spin(Duration spin) { spin_ = spin; }
  /// True if this rank shares CPUs with others. Its waits then yield the CPU between polls.
  bool yields() const { return set_.yields(); }
  // Any thread may read the counter.
  const Count& blocked_waits() const { return blocked_waits_; }  // waits that stopped polling
  void forget_counts() { blocked_waits_ = {}; }

 private:
  /// Polls before a wait looks at anything else.
  static constexpr int kFirstPolls = 64;

  void add(Rank peer, std::unique_ptr<Endpoint> channel);
  void set_up(Opening& link, Opening::State state);
  void wait_slowly(Rank peer, const std::function<bool()>& ready,
                   const std::function<std::string()>& doing, uint64_t bytes,
                   std::optional<Patience>& kept);
  void block(Rank peer, const std::function<bool()>& ready,
             const std::function<std::string()>& doing, Deadline& deadline, Patience& patience);
  bool progress_others(const Endpoint* but);
  void drain(Rank peer, Deadline deadline);

  Group& group_;
  std::vector<std::unique_ptr<Endpoint>> channels_;  // by peer
  std::vector<HostLink*> host_links_;                // by peer; null: not within a host
  std::vector<Rank> connected_;
  std::vector<bool> by_network_;  // by peer
  WaitSet set_;                   // of all transports of the group
  Duration spin_;
  std::optional<Deadline> deadline_;  // of all waits of a call
  std::optional<Clock::time_point> wake_at_;
  std::atomic<bool> blocked_ = false;
  Count blocked_waits_;
};

}  // namespace ringcoll
