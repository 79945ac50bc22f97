// Lifelines: one TCP connection for every pair of ranks of a mesh that talk, whatever carries their
// data. A process that dies closes its lifelines, so that death is noticed within milliseconds and
// told to all; the first error of a group of ranks is flooded along them, so that all of the group
// raise the same cause and nobody else does; a rank about to give up on a peer asks it first
// whether it is alive.
//
// Protocol (fixed width, versioned, range-checked): hello, goodbye, lost{rank, code, text},
// failed{group, code, blamed rank, text}, left{group}, ping{group}, pong{group, waiting for},
// ballot{group, round, rank, decided, set, offer}, calls{group, what they are}.
// "Lost", "failed" and ballots are passed on to all lines by whoever hears them first, in the group
// or not, for the lines of a group's own ranks need not join them; who comes late hears them, too.
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
#include "bootstrap/connector.h"
#include "mesh/survivors.h"
#include "net/event_loop.h"

namespace ringcoll {

/// Of a mesh. Ranks are the mesh's.
class Lifelines {
 public:
  /// `describe(rank)` gives "rank 3 (pid 4711 on node17)" for messages.
  Lifelines(Rank rank, Rank size, EventLoop& loop, std::function<std::string(Rank)> describe);
  /// Says goodbye on every line and closes them. After all Health of it.
  ~Lifelines();

  /// Takes a connected lifeline over. Any thread.
  void add(Rank peer, Fd fd);
  bool has(Rank peer) const;
  /// Those that have ended without a goodbye, as far as was heard.
  std::vector<Rank> lost() const;
  /// A group that this rank is in, and cannot join or use, has failed: tells all. Any thread.
  void fail(GroupNumber group, const Error& error);
  /// Groups of which something is kept though this rank is not in them: none once all have left.
  size_t remembered() const;
  /// Of what was flooded, for those who come late.
  size_t remembered_bytes() const;

 private:
  friend class Health;
  struct State;
  std::shared_ptr<State> state_;  // a task of the loop may outlive this
};

/// Who wants to hear of a group what its ranks say of their calls. On the loop's thread, one at a
/// time, under no lock of the lifelines; does not block.
class HealthListener {
 public:
  virtual ~HealthListener() = default;
  /// Time has passed (Health::kTick). False: it wants no more of it.
  virtual bool tick() = 0;
  /// What a rank has told, as it is on the wire.
  virtual void hear(Rank from, std::string_view calls) = 0;
};

/// What has become of a group: all well, or its first error, which all its ranks raise. A group
/// with a rank that was lost has failed, by itself. Ranks are the group's.
class Health {
 public:
  struct Options {
    GroupNumber group = 0;
    std::vector<Rank> members;  // ranks of the mesh
    // Once, on the loop's thread or the thread that calls poison(), when the first error is known:
    // wakes whoever waits.
    std::function<void()> on_poison;
    std::function<std::string(Rank)> describe;  // as for Lifelines
  };
  /// May have failed already. `lifelines` outlives it.
  Health(Lifelines& lifelines, Options options);
  /// Tells peers that this rank has left the group, unless leave() was called.
  ~Health();
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  /// Tells peers that this rank has left the group; `on_poison` is not called any more.
  void leave();

  /// Makes `error` the group's error unless there is one already, and floods it. Any thread.
  void poison(const Error& error);
  /// The same, unless the cause behind it (a peer that closed after an error of its own) arrives
  /// first, which is waited for a moment.
  void fail(const Error& error);
  /// One load; for the hot path.
  bool poisoned() const { return observe(*poisoned_); }
  /// The first error. Only after poisoned().
  Error error() const;
  void throw_if_poisoned() const {
    if (poisoned()) [[unlikely]]
      throw error();
  }

  /// The peer whom this rank waits for now, kNobody if none; told to whoever pings. Any thread.
  void set_waiting_for(Rank peer);
  /// `body` may wait for this peer: should it hang, others are told whom this rank waits for. It is
  /// interrupted when the group fails, which is what is raised then. Of an error that blames a
  /// rank, this one, by whatever number it knows it.
  void waiting_for(Rank peer, const std::function<void()>& body);
  /// Called when a wait for `peer` has reached its deadline: finds out whom to blame. Pings the
  /// peer; if it answers that it waits for another, asks that one, and so on; each has `grace` to
  /// answer, and the neighbours of one that cannot be asked have a little longer to report
  /// first-hand. Returns the error to raise: the first error if there is one meanwhile, PeerLost if
  /// the rank has left, else Timeout naming the rank at the end of the chain of waits. Any thread
  /// but the loop's.
  Error blame(Rank peer, const std::string& doing, Duration grace);
  /// Whether the peer answers within `grace`, or nobody can ask it. Any thread but the loop's.
  bool answers(Rank peer, Duration grace) const;
  /// Whether the peer has left the group, or its mesh, or its line has closed.
  bool gone(Rank peer) const;

  // Agreeing on who is left (mesh/survivors.h), in rounds, which all ranks count alike.

  /// Tells all; it is among ballots() at once.
  void say(uint64_t round, const Survivors::Ballot& ballot);
  /// What all have said in that round as far as it was heard, but for the first `known`.
  std::vector<Survivors::Ballot> ballots(uint64_t round, size_t known) const;
  /// All of whom it is known here that they have gone or were lost.
  std::vector<Rank> all_gone() const;
  /// Until there is news of any kind, or `limit` has passed.
  void wait_for_news(Duration limit) const;

  // Comparing calls.

  /// From now on it hears; null: when this has returned, nobody does. Any thread but the loop's.
  void listen(HealthListener* listener);
  /// From now on the listener has a tick() every kTick, until it wants no more. Any thread.
  void tick();
  /// Often enough that ranks which disagree learn of it within a fraction of a second.
  static constexpr Duration kTick = std::chrono::milliseconds(100);
  /// Those who are told: the rank that this one waits for, and of those that a lifeline joins with
  /// it the kMostTold nearest in the order of the group. Any thread.
  std::vector<Rank> listeners() const;
  static constexpr size_t kMostTold = 16;
  /// Tells a rank, if a lifeline joins the two and its peer reads what comes. Any thread.
  void tell_calls(Rank to, std::string_view calls);

 private:
  friend class Lifelines;
  struct State;
  Rank own_rank() const;

  std::shared_ptr<Lifelines::State> lines_;
  std::shared_ptr<State> state_;  // a callback that runs may outlive this
  const std::atomic<bool>* poisoned_;
};

}  // namespace ringcoll
