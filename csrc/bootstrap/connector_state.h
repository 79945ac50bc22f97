// What a Connector is made of.
#pragma once

#include <condition_variable>
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
#include "bootstrap/connector.h"
#include "bootstrap/exchange.h"
#include "bootstrap/gate.h"
#include "bootstrap/networks.h"
#include "bootstrap/rate.h"

namespace ringcoll {

/// Channels of the trials of networks, one each; no group has them.
inline constexpr uint64_t kTrialChannel = uint64_t{1} << 63;

/// What a group has for a pair: enough for the streams of a transport, and one for messages.
inline constexpr uint64_t kChannelsOfGroup = 32;
static_assert(kGroupNumbers * kChannelsOfGroup <= kTrialChannel);
inline constexpr uint32_t kMessageChannel = kMeetingChannel - 1;
static_assert(kMeetingChannel < kChannelsOfGroup);

/// What the lower rank of a pair says of a connection that the higher has made (calls.cc).
inline constexpr char kLetIn = 'T';
inline constexpr char kCrossed = 'X';

/// Groups that have ended and are remembered.
inline constexpr size_t kMostEnded = 4096;

/// As long as a connection may take to a peer that answers.
inline constexpr Duration kSettling = std::chrono::milliseconds(200);

inline uint64_t channel_of(GroupNumber group, uint32_t channel) {
  invariant(group < kGroupNumbers && channel < kChannelsOfGroup, "channel {} of group {}", channel,
            group);
  return group * kChannelsOfGroup + channel;
}
/// Whether either of a pair may make it: lifelines, and those for messages.
inline bool is_either(uint64_t channel) {
  return channel == kLifelineChannel ||
         (channel < kTrialChannel && channel % kChannelsOfGroup == kMessageChannel);
}
/// Where dials are interrupted, of lifelines that no group asked for; no group.
inline constexpr GroupNumber kLifelines = 2 * kGroupNumbers;
/// What stands for the messages of a group where dials are interrupted; no group.
inline GroupNumber messages_of(GroupNumber group) { return kGroupNumbers + group; }

struct Connector::State {
  State(Rank own, std::vector<Interface> interfaces, EventLoop& loop);
  ~State();

  const Rank rank;
  std::vector<Offer> offers;
  // These are set before the gates open, and constant then.
  std::vector<std::vector<Offer>> of_rank;
  std::vector<Network> networks;
  std::string secret;
  GroupId group{};

  std::vector<NetworkChoice> used;  // of the networks; empty until that is settled

  std::mutex mutex;
  std::condition_variable changed;                 // `calling`
  std::map<std::pair<Rank, uint64_t>, Fd> parked;  // accepted, not yet asked for
  std::map<Rank, std::string> refusals;  // ranks of this job that were not let in, and why
  std::set<GroupNumber> interrupted;
  // Late connections to it are closed. Those to one that ended thousands of groups ago are not
  // expected any more.
  Recent<GroupNumber, bool> ended{kMostEnded};
  std::set<int> waiting;         // descriptors by which those who wait are told (batch.h)
  uint64_t rejected_before = 0;  // by gates that are closed

  /// A connection that either of a pair may have made (calls.cc).
  struct Either {
    bool dialled = false;  // this rank makes it
    bool there = false;    // it was made, by whichever
    Fd fd;                 // to be taken
    std::optional<Error> error;
  };
  std::map<std::pair<Rank, uint64_t>, Either> either;      // by peer and channel
  std::map<GroupNumber, std::function<void()>> listeners;  // to what can be taken
  std::map<GroupNumber, size_t> calling;                   // how many of each group are in flight
  bool stopping = false;
  std::mutex adopting;  // a call of `adopt` against stop(); taken without the other
  std::function<void(Rank, Fd)> adopt;

  Sink sink;
  std::vector<std::unique_ptr<Gate>> gates;  // by offer; their callbacks use what is above
  class Calls;                               // calls.h
  std::unique_ptr<Calls> calls;              // the last: they use the rest

  void on_accepted(const Identity& identity, Fd fd);
  void on_refused(const Gate::Refusal& refusal);
  uint64_t rejected() const {
    uint64_t sum = rejected_before;
    for (const auto& gate : gates)
      if (gate) sum += gate->rejected();
    return sum;
  }
  /// Where loopback is down, ranks of one network stack do not reach each other by any address of a
  /// network, and have offered a local one as their last.
  const Offer& offer_of(Rank peer, int network) const {
    const Offer& last = of_rank[peer].back();
    bool is_local = peer != rank && last.address.family() == AF_UNIX;
    if (is_local && last.stack == offers.front().stack) return last;
    return of_rank[peer][networks[network].offer_of[peer]];
  }
  bool is_interrupted(GroupNumber for_group) {
    std::lock_guard lock(mutex);
    return interrupted.contains(for_group) || stopping;
  }
  /// Those who wait look again at what was accepted, and whether they are interrupted.
  void tell_waiting();
  /// What a connection is for.
  struct Target {
    Rank peer;
    uint64_t channel;
    GroupNumber group;
  };
  size_t place_on_host(Rank r) const;
  std::vector<int> networks_for(Rank peer, uint64_t channel) const;
  class Dial;  // dial.h
  class Outward;
  class Inward;
  class Batch;  // batch.h
  void interrupt(GroupNumber for_group);
  // In calls.cc.
  void take_either(const Identity& identity, Fd fd);
  void tell_listener(GroupNumber group);
  /// Under the lock.
  bool is_there(const Target& to) const {
    auto found = either.find({to.peer, to.channel});
    return found != either.end() && found->second.there;
  }
  void try_peer(Rank peer, bool measure, Deadline deadline, Trial* trial);
  Error no_network(std::span<const Trial> trials,
                   const std::function<std::string(Rank)>& describe) const;
};

}  // namespace ringcoll
