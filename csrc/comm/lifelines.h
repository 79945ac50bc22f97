// Lifelines: one TCP connection for every pair of ranks that talk, whatever carries their data. A
// process that dies closes its lifelines, so that death is noticed within milliseconds; the first
// error of any rank is flooded along them, so that every survivor raises the same cause; a rank
// about to give up on a peer asks it first whether it is alive.
//
// Protocol (fixed width, versioned, range-checked): goodbye, poison{code, blamed rank, text}, ping,
// pong{waiting for}.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "net/event_loop.h"

namespace ringcoll {

class Lifelines {
 public:
  /// `on_poison` runs once, on the loop's thread or the thread that calls poison(), when the first
  /// error is known: it wakes whoever waits. `describe(rank)` gives "rank 3 (pid 4711 on node17)"
  /// for messages.
  Lifelines(Rank rank, Rank size, EventLoop& loop, std::function<void()> on_poison,
            std::function<std::string(Rank)> describe);
  /// Says goodbye on every line and closes them.
  ~Lifelines();

  /// Takes a connected lifeline over. Any thread.
  void add(Rank peer, Fd fd);
  bool has(Rank peer) const;

  /// Makes `error` the communicator's error unless there is one already, and floods it. Any thread.
  void poison(const Error& error);
  /// One relaxed load; for the hot path.
  bool poisoned() const { return poisoned_.load(std::memory_order_acquire); }
  /// The first error. Only after poisoned().
  Error error() const;

  /// The peer whom this rank waits for now, kNobody if none; told to whoever pings. Any thread.
  void set_waiting_for(Rank peer) { waiting_for_.store(peer, std::memory_order_relaxed); }
  /// Called when a wait for `peer` has reached its deadline: finds out whom to blame. Pings the
  /// peer; if it answers that it waits for another, asks that one, and so on; each has `grace` to
  /// answer, and the neighbours of one that cannot be asked have a little longer to report
  /// first-hand. Returns the error to raise: the first error if there is one meanwhile, PeerLost if
  /// the rank has left, else Timeout naming the rank at the end of the chain of waits. Any thread
  /// but the loop's.
  Error blame(Rank peer, const std::string& doing, Duration grace);
  /// Whether the peer has said goodbye or its line has closed.
  bool gone(Rank peer) const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // a task of the loop may outlive this
  std::atomic<bool> poisoned_{false};
  std::atomic<Rank> waiting_for_{kNobody};
};

}  // namespace ringcoll
