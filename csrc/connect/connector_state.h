// The state of a Connector, which the sources of its parts share.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/recent.h"
#include "connect/connector.h"
#include "connect/gate.h"
#include "connect/networks.h"
#include "connect/rate.h"

namespace ringcoll {

/// The trial of network i uses channel kTrialChannel + i. No group has these channels.
inline constexpr uint64_t kTrialChannel = uint64_t{1} << 63;

/// Channels of a group for each pair: those for the streams of a transport, and one for messages.
inline constexpr uint64_t kChannelsOfGroup = 32;
static_assert(kGroupNumbers * kChannelsOfGroup <= kTrialChannel);
static_assert(kMeetingChannel < kChannelsOfGroup);

/// What the lower rank answers to a connection that the higher rank made (either.cc): accepted, or
/// dropped since the lower rank makes its own.
inline constexpr char kLetIn = 'T';
inline constexpr char kCrossed = 'X';

/// Number of ended groups that are remembered.
inline constexpr size_t kMostEnded = 4096;

/// The time in which a peer that answers completes a connection.
inline constexpr Duration kSettling = std::chrono::milliseconds(200);

inline uint64_t channel_of(GroupNumber group, uint32_t channel) {
  invariant(group < kGroupNumbers && channel < kChannelsOfGroup, "channel {} of group {}", channel,
            group);
  return group * kChannelsOfGroup + channel;
}
/// Whether either rank of a pair may make this connection: lifelines, and those for messages.
inline bool is_either(uint64_t channel) {
  return channel == kLifelineChannel ||
         (channel < kTrialChannel && channel % kChannelsOfGroup == kMessageChannel);
}

struct Connector::State {
  State(Rank own, std::vector<Interface> interfaces, EventLoop& loop);
  ~State();

  const Rank rank;
  std::vector<Offer> offers;
  // Set before the gates open, and constant from then on.
  std::vector<std::vector<Offer>> of_rank;
  std::vector<Network> networks;
  std::string secret;
  GroupId group{};

  std::mutex mutex;
  std::vector<NetworkChoice> used;                 // empty until the networks are chosen
  std::map<std::pair<Rank, uint64_t>, Fd> parked;  // accepted and not yet taken
  std::map<Rank, std::string> refusals;            // ranks of this job that were refused, and why
  std::set<GroupNumber> interrupted;
  // Late connections for these groups are closed. For a group that ended kMostEnded groups ago none
  // is expected.
  Recent<GroupNumber, bool> ended{kMostEnded};
  std::set<int> waiting;         // eventfds of the threads that wait (batch.h)
  uint64_t rejected_before = 0;  // counted by gates that are closed now

  /// A connection that either rank of a pair may make (either.cc).
  struct Either {
    bool dialled = false;  // this rank has begun to make it
    bool there = false;    // it was made, by either end, and nobody will make it again
  };
  std::map<std::pair<Rank, uint64_t>, Either> either;      // by peer and channel
  std::map<GroupNumber, std::function<void()>> listeners;  // called when a peer has made one
  bool stopping = false;
  std::mutex adopting;  // guards `adopt` and its calls; locked before `mutex`
  std::function<void(Rank, Fd)> adopt;

  Sink sink;
  std::vector<std::unique_ptr<Gate>> gates;  // by offer; their callbacks use the members above
  class Worker;                              // worker.h
  std::unique_ptr<Worker> worker;            // the last member: it uses all others

  void on_accepted(const Identity& identity, Fd fd);
  void on_refused(const Gate::Refusal& refusal);
  uint64_t rejected() const {
    uint64_t sum = rejected_before;
    for (const auto& gate : gates)
      if (gate) sum += gate->rejected();
    return sum;
  }
  /// Where loopback is down, ranks of one network stack cannot reach each other over a network.
  /// They offer a local socket then, as their last offer.
  const Offer& offer_of(Rank peer, int network) const {
    const Offer& last = of_rank[peer].back();
    bool is_local = peer != rank && last.address.family() == AF_UNIX;
    if (is_local && last.stack == offers.front().stack) return last;
    return of_rank[peer][networks[network].offer_of[peer]];
  }
  bool is_interrupted(GroupNumber for_group) {
    std::lock_guard lock(mutex);
    return interrupted.contains(for_group) || ended.find(for_group) || stopping;
  }
  /// Wakes all threads that wait, so that they look for accepted connections and interrupts.
  void tell_waiting();
  /// The purpose of a connection; `group` is the number under which it is interrupted.
  struct Target {
    Rank peer;
    uint64_t channel;
    GroupNumber group;
  };
  size_t place_on_host(Rank r) const;
  std::vector<int> networks_for(Rank peer, uint64_t channel);
  class Dial;  // dial.h
  class Outward;
  class Inward;
  class Batch;  // batch.h
  void interrupt(GroupNumber for_group);
  // Defined in either.cc.
  void take_either(const Identity& identity, Fd fd);
  void tell_listener(GroupNumber group);
  /// Takes the connection if the peer has made it. True also if it was taken before. Requires
  /// `mutex`.
  bool take_made(const Target& to, Fd* fd) {
    auto accepted = parked.extract({to.peer, to.channel});
    if (accepted) *fd = std::move(accepted.mapped());
    auto found = either.find({to.peer, to.channel});
    return accepted || (found != either.end() && found->second.there);
  }
  void try_peer(Rank peer, bool measure, Deadline deadline, Trial* trial);
  Error no_network(std::span<const Trial> trials,
                   const std::function<std::string(Rank)>& describe) const;
};

}  // namespace ringcoll
