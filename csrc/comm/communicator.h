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
#include "mesh/group.h"

namespace ringcoll {

class Shrink;

/// Of one communicator since it was made; written by the thread that executes.
struct Counters {
  Count calls;
  Count messages_sent;
  Count bytes_sent;
  Count bytes_sent_zero_copy;  // of them, read in the caller's memory by the peer or a device
  Count bytes_sent_handed;     // of them, in buffers that were handed over
  Count bytes_received;
  Count bytes_packed;    // copied from inputs into the arena
  Count bytes_unpacked;  // copied to outputs
  Count bytes_combined;  // written by a reduction
};

class Communicator {
 public:
  /// Of all ranks of the exchange, on a mesh of its own. Collective. Throws Error naming what could
  /// not be agreed or reached, and the remedy: on all ranks or on none.
  Communicator(Config config, std::string name, Exchange& exchange);
  /// Of a group that has joined, on the mesh of the communicator that it is a part of.
  Communicator(std::unique_ptr<Group> group, std::string name);
  /// Tells peers that this rank leaves.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return group_.rank(); }
  Rank size() const { return group_.size(); }
  const std::string& name() const { return name_; }
  const Config& config() const { return group_.config(); }
  const Topology& topology() const { return group_.topology(); }
  const Costs& costs() const { return group_.costs(); }  // agreed
  Counters& counters() { return counters_; }
  Group& group() { return group_; }
  const Group& group() const { return group_; }
  /// Makes a group of some of its ranks, this one among them, which is to join.
  std::unique_ptr<Group> part(std::span<const Rank> ranks) const;
  /// The group of those of its ranks who are left (mesh/shrink.h), with the time of
  /// RINGCOLL_TIMEOUT_S. After an Error(kTimeout) the next call goes on with the same. `is_aborted`
  /// as of Shrink::run(). Any thread, one at a time.
  std::unique_ptr<Group> shrink(const std::function<bool()>& is_aborted);

  // For the thread that executes (one at a time; the engine sees to it).

  Channels& channels() { return group_.channels(); }
  /// The one to a peer that is connected.
  Endpoint& channel(Rank peer) { return group_.channels()[peer]; }
  /// Poisons with `error`, unless the cause behind it (a peer that closed after an error of its
  /// own) arrives first. What was lent is not touched any more. Returns the error to raise.
  Error fail(const Error& error) { return group_.fail(error); }
  /// Throws the first error if there is one.
  void throw_if_poisoned() const { group_.health().throw_if_poisoned(); }
  /// First error wins; flooded to all ranks. Any thread.
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
  std::unique_ptr<Group> part_;  // null: all ranks
  Group& group_;
  std::unique_ptr<Shrink> shrink_;  // that is not decided yet
};

}  // namespace ringcoll
