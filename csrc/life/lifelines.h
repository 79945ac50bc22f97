// Lifelines: one TCP connection for each pair of ranks that talk, whatever carries their data. They
// serve three ends:
// - A process that dies closes its lifelines. Its peers notice that within milliseconds and tell
// all.
// - The first error of a group is flooded along them, so all ranks of the group raise the same
// cause.
// - A rank that is about to give up on a peer first asks it whether it is alive.
//
// Protocol (fixed width, versioned, range-checked): hello, goodbye, lost{rank, code, text},
// failed{group, code, blamed rank, text}, left{group}, ping{group}, pong{group, waiting for},
// ballot{group, round, rank, decided, set, offer}, calls{group, text of the calls}.
// A rank that first hears "lost", "failed" or a ballot passes it on to all lines, even if it is not
// in the group: lifelines between the group's own ranks need not connect them all. A new lifeline
// first carries what was flooded before.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/order.h"
#include "connect/connector.h"
#include "life/survivors.h"
#include "net/event_loop.h"

namespace ringcoll {

/// The lifelines of a mesh. Ranks are mesh ranks.
class Lifelines {
 public:
  /// `describe(rank)` gives "rank 3 (pid 4711 on node17)" for messages.
  Lifelines(Rank rank, Rank size, EventLoop& loop, std::function<std::string(Rank)> describe);
  /// Says goodbye on every lifeline and closes it. All Health objects must be gone.
  ~Lifelines();

  /// Takes over a connected lifeline. Any thread.
  void add(Rank peer, Fd fd);
  bool has(Rank peer) const;
  /// Ranks that were reported lost: their lifeline ended without a goodbye.
  std::vector<Rank> lost() const;
  /// Tells all ranks that a group of this rank has failed before it could join or use it. Any
  /// thread.
  void fail(GroupNumber group, const Error& error);
  /// The number of groups that this rank is not in and still keeps something of. It is 0 once all
  /// ranks have left them.
  size_t remembered() const;
  /// Bytes of flooded messages that are kept for new lifelines.
  size_t remembered_bytes() const;

 private:
  friend class Health;
  struct State;
  std::shared_ptr<State> state_;  // tasks of the loop may outlive this
};

/// Receives what the ranks of a group tell about their calls. Its methods run on the loop's thread,
/// one at a time, under no lock of the lifelines, and must not block.
class HealthListener {
 public:
  virtual ~HealthListener() = default;
  /// Called every Health::kTick. Returns false when it needs no more ticks.
  virtual bool tick() = 0;
  /// Takes what a rank told, as it is on the wire.
  virtual void hear(Rank from, std::string_view calls) = 0;
};

/// The health of a group: its first error, if any, which all its ranks raise. A group fails by
/// itself when one of its ranks is lost. Ranks are group ranks.
class Health {
 public:
  struct Options {
    GroupNumber group = 0;
    std::vector<Rank> members;  // mesh ranks
    // Called once when the first error is known, to wake up waits. It runs on the loop's thread, or
    // inside poison(), fail(), Lifelines::fail() or the constructor.
    std::function<void()> on_poison;
    std::function<std::string(Rank)> describe;  // as for Lifelines
  };
  /// The group may have failed before this is constructed. `lifelines` outlives this object.
  Health(Lifelines& lifelines, Options options);
  /// Calls leave().
  ~Health();
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  /// Tells peers that this rank has left the group, once. `on_poison` is not called afterwards.
  void leave();

  /// Makes `error` the group's error, unless it has one, and floods it. Any thread.
  void poison(const Error& error);
  /// The same, but first gives another rank a moment to report the cause: a peer may have closed
  /// after an error of its own. Blocks for 0.3 s at most.
  void fail(const Error& error);
  /// One load, for the hot path.
  bool poisoned() const { return observe(*poisoned_); }
  /// The first error. Precondition: poisoned().
  Error error() const;
  void throw_if_poisoned() const {
    if (poisoned()) [[unlikely]]
      throw error();
  }

  /// Sets the peer that this rank waits for now, or kNobody. A rank that pings is told. Any thread.
  void set_waiting_for(Rank peer);
  /// Runs `body`, which may wait for `peer`; meanwhile pings are told so. If the group fails, its
  /// error is raised instead of the error of `body`. Another error of `body` that blames a rank is
  /// raised with `peer` as the blamed rank, since `body` may use other rank numbers.
  void waiting_for(Rank peer, const std::function<void()>& body);
  /// Finds the rank to blame after a wait for `peer` reached its deadline. Pings the peer. If it
  /// answers that it waits for another rank, pings that one, and so on along the chain of waits.
  /// Each rank has `grace` to answer. A rank without a lifeline to this one cannot be asked; its
  /// neighbours then have 1.5 times `grace` to report first.
  ///
  /// Returns the error to raise: the group's first error if there is one by then, PeerLost if the
  /// rank has left, else Timeout that names the rank at the end of the chain. Any thread but the
  /// loop's.
  Error blame(Rank peer, const std::string& doing, Duration grace);
  /// True if the peer answers within `grace`, or has no lifeline to this rank. Any thread but the
  /// loop's.
  bool answers(Rank peer, Duration grace) const;
  /// True if the peer has left the group or the mesh, or its lifeline has closed.
  bool gone(Rank peer) const;

  // Agreement on the remaining ranks (life/survivors.h). All ranks count its rounds alike.

  /// Floods a ballot of this rank. ballots() has it at once.
  void say(uint64_t round, const Survivors::Ballot& ballot);
  /// The ballots of that round that were heard so far, except the first `known`.
  std::vector<Survivors::Ballot> ballots(uint64_t round, size_t known) const;
  /// All ranks known here to have gone or to be lost. This rank is among them if others say so.
  std::vector<Rank> all_gone() const;
  /// Blocks until there is news of any kind, or `limit` has passed. May return early.
  void wait_for_news(Duration limit) const;

  // Comparison of calls.

  /// Sets the listener. With null, no listener runs any more when this returns. Any thread but the
  /// loop's.
  void listen(HealthListener* listener);
  /// Starts calls of the listener's tick() every kTick, until it returns false. Any thread.
  void tick();
  /// Short enough that ranks which disagree learn of it within a fraction of a second.
  static constexpr Duration kTick = std::chrono::milliseconds(100);
  /// The ranks to tell about calls. The rank that this one waits for comes first; the nearest ranks
  /// in the group's order follow, about kMostTold. All have a lifeline to this rank. Any thread.
  std::vector<Rank> listeners() const;
  static constexpr size_t kMostTold = 16;
  /// Tells a rank, if it has a lifeline to this one and reads it. Any thread.
  void tell_calls(Rank to, std::string_view calls);

 private:
  friend class Lifelines;
  struct State;
  Rank own_rank() const;

  std::shared_ptr<Lifelines::State> lines_;
  std::shared_ptr<State> state_;  // a running callback may outlive this
  const std::atomic<bool>* poisoned_;
};

}  // namespace ringcoll
