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

#include "base/errands.h"
#include "base/error.h"
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

/// Connections that are made aside at a time. A peer that does not answer keeps one.
inline constexpr size_t kMostErrands = 8;

inline uint64_t channel_of(GroupNumber group, uint32_t channel) {
  invariant(group < kGroupNumbers && channel < kChannelsOfGroup, "channel {} of group {}", channel,
            group);
  return group * kChannelsOfGroup + channel;
}
/// Whether either of a pair may make it: lifelines, and those for messages.
inline bool is_either(uint64_t channel) {
  return channel == kLifelineChannel || channel % kChannelsOfGroup == kMessageChannel;
}
/// Where dials are interrupted, of lifelines that no group asked for; no group.
inline constexpr GroupNumber kLifelines = 2 * kGroupNumbers;
/// What stands for the messages of a group where dials are interrupted; no group.
inline GroupNumber messages_of(GroupNumber group) { return kGroupNumbers + group; }

struct Connector::State {
  State(Rank own, std::vector<Interface> interfaces, EventLoop& loop);

  const Rank rank;
  std::vector<Offer> offers;
  // These are set before the gates open, and constant then.
  std::vector<std::vector<Offer>> of_rank;
  std::vector<Network> networks;
  std::string secret;
  GroupId group{};

  std::vector<NetworkChoice> used;  // of the networks; empty until that is settled

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<Rank, uint64_t>, Fd> parked;  // accepted, not yet asked for
  std::map<Rank, std::string> refusals;  // ranks of this job that were not let in, and why
  std::set<GroupNumber> interrupted, ended;
  std::multimap<GroupNumber, int> dialling;  // sockets that a connect_at() waits on, by group
  uint64_t rejected_before = 0;              // by gates that are closed

  /// A connection that either of a pair may have made (calls.cc).
  struct Either {
    bool dialled = false;  // this rank makes it
    bool there = false;    // it was made, by whichever
    Fd fd;                 // to be taken
    std::optional<Error> error;
  };
  std::map<std::pair<Rank, uint64_t>, Either> either;      // by peer and channel
  std::map<GroupNumber, std::function<void()>> listeners;  // to what can be taken
  std::map<GroupNumber, size_t> calling;                   // errands of each group
  bool stopping = false;
  std::mutex adopting;  // a call of `adopt` against stop(); taken without the other
  std::function<void(Rank, Fd)> adopt;

  Sink sink;
  std::vector<std::unique_ptr<Gate>> gates;  // by offer; their callbacks use what is above
  Errands errands{kMostErrands};             // the last: they use the rest

  void on_accepted(const Identity& identity, Fd fd);
  void on_refused(const Gate::Refusal& refusal);
  uint64_t rejected() const {
    uint64_t sum = rejected_before;
    for (const auto& gate : gates)
      if (gate) sum += gate->rejected();
    return sum;
  }
  const Offer& offer_of(Rank peer, int network) const {
    return of_rank[peer][networks[network].offer_of[peer]];
  }
  void throw_if_interrupted(GroupNumber for_group, const std::string& link) const {
    check(!interrupted.contains(for_group) && !stopping, Code::kTransport,
          "{}: given up, for the communicator has failed", link);
  }
  bool is_interrupted(GroupNumber for_group) {
    std::lock_guard lock(mutex);
    return interrupted.contains(for_group);
  }
  /// What a dial() is for.
  struct Target {
    Rank peer;
    uint64_t channel;
    GroupNumber group;
  };
  size_t place_on_host(Rank r) const;
  std::vector<int> networks_for(Rank peer, uint64_t channel) const;
  class Dialling;
  Fd connect_at(const Offer& offer, const Target& to, Deadline reach, Deadline deadline);
  Fd connect(const Target& to, Deadline deadline);
  Fd accept(const Target& to, Deadline deadline);
  void interrupt(GroupNumber for_group);
  // In calls.cc.
  Fd make_either(const Target& to, Deadline deadline);
  bool is_let_in(int fd, const Target& to, Deadline deadline);
  void take_either(const Identity& identity, Fd fd);
  void tell_listener(GroupNumber group);
  /// Under the lock.
  bool is_there(const Target& to) const {
    auto found = either.find({to.peer, to.channel});
    return found != either.end() && found->second.there;
  }
  void throw_if_ended(Rank peer, uint64_t channel, const std::string& link) const;
  void try_peer(Rank peer, bool measure, Deadline deadline, Trial* trial);
  Error no_network(std::span<const Trial> trials,
                   const std::function<std::string(Rank)>& describe) const;
};

/// While it lives, interrupt() ends what waits on the socket.
class Connector::State::Dialling {
 public:
  Dialling(State& state, int fd, GroupNumber for_group, const std::string& link) : state_(state) {
    std::lock_guard lock(state_.mutex);
    state_.throw_if_interrupted(for_group, link);
    entry_ = state_.dialling.emplace(for_group, fd);
  }
  ~Dialling() {
    std::lock_guard lock(state_.mutex);
    state_.dialling.erase(entry_);
  }
  Dialling(const Dialling&) = delete;
  Dialling& operator=(const Dialling&) = delete;

 private:
  State& state_;
  std::multimap<GroupNumber, int>::iterator entry_;
};

}  // namespace ringcoll
