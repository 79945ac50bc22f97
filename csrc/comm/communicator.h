// A communicator: a group of ranks with a name and counters. It knows nothing of collectives.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/error.h"
#include "bootstrap/exchange.h"
#include "mesh/group/group.h"
#include "mesh/group/split.h"

namespace ringcoll {

class Shrink;

/// Counters of one communicator since it was made. The thread that executes its calls writes them.
struct Counters {
  Count calls;
  Count messages_sent;
  Count bytes_sent;
  Count bytes_sent_zero_copy;  // of them, read from the caller's memory by a peer or device
  Count bytes_sent_copied;     // of them, copied by the link when they were sent
  Count bytes_received;
  Count bytes_packed;    // copied from inputs into the arena
  Count bytes_unpacked;  // copied to outputs
  Count bytes_combined;  // written by a reduction
};

class Communicator {
 public:
  /// Makes a communicator of all ranks of the exchange, with a mesh of its own. Collective. Throws
  /// Error on all ranks or on none; it names what could not be agreed or reached, and the remedy.
  Communicator(Config config, std::string name, Exchange& exchange);
  /// Makes a communicator of a group that has joined. It shares the mesh of the group.
  Communicator(std::unique_ptr<Group> group, std::string name);
  /// Leaves the group, and tells the peers.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return group_.rank(); }
  Rank size() const { return group_.size(); }
  const std::string& name() const { return name_; }
  const Config& config() const { return group_.config(); }
  const Topology& topology() const { return group_.topology(); }
  const Costs& costs() const { return group_.costs(); }  // agreed by all ranks
  Counters& counters() { return counters_; }
  Group& group() { return group_; }
  const Group& group() const { return group_; }
  /// Makes a group of some ranks of this communicator, including this rank. The group has not
  /// joined yet.
  std::unique_ptr<Group> part(std::span<const Rank> ranks) const;
  /// Makes a group of some ranks of this communicator, which has joined; null if this rank is in no
  /// group (mesh/group/split.h).
  std::unique_ptr<Group> split(std::span<const Rank> ranks, const Gather& gather);
  /// Makes a group of the ranks that are left (mesh/group/shrink.h), within RINGCOLL_TIMEOUT_S.
  /// After an error that leaves the shrink undecided, such as Error(kTimeout), the next call
  /// continues it. `is_aborted` as in Shrink::run(). Any thread, one at a time.
  std::unique_ptr<Group> shrink(const std::function<bool()>& is_aborted);

  // For the thread that executes calls; the engine ensures that only one does at a time.

  Channels& channels() { return group_.channels(); }
  /// The channel to a peer. Precondition: it is connected.
  Endpoint& channel(Rank peer) { return group_.channels()[peer]; }
  /// Poisons the group with `error`, unless the cause of it arrives first: a peer that closed may
  /// have had an error of its own. When this returns, nobody uses lent memory. Returns the
  /// error to raise.
  Error fail(const Error& error) { return group_.fail(error); }
  /// Throws the first error, if there is one.
  void throw_if_poisoned() const { group_.health().throw_if_poisoned(); }
  /// Poisons the group and tells all its ranks. The first error wins. Any thread.
  void poison(const Error& error) { group_.health().poison(error); }
  bool poisoned() const { return group_.health().poisoned(); }
  Error error() const { return group_.health().error(); }

 private:
  std::string ports_of_this_host() const;
  void say_hello() const;

  std::string name_;
  Counters counters_;
  uint64_t shrinks_ = 0;
  std::shared_ptr<Mesh> mesh_;
  std::unique_ptr<Group> part_;  // null: the group of all ranks
  Group& group_;
  std::unique_ptr<Shrink> shrink_;  // one that is not decided yet
};

}  // namespace ringcoll
