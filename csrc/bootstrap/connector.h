// Authenticated TCP connections between the ranks of a job. Each rank listens on each interface
// that may be used, and later on those alone that are; of a pair the lower rank connects, the
// higher accepts, but for those that either may need first. A connection proves that it knows the
// job's secret (both ways, HMAC over fresh nonces) before anything else of it is parsed, under a
// deadline and a limit on connections that have not yet done so. Anything else is closed and
// counted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/error.h"
#include "base/fd.h"
#include "bootstrap/dialer.h"
#include "net/event_loop.h"

namespace ringcoll {

struct Interface;

/// Identifies a group of ranks of a job, for good, on all of them; 0 is that of all ranks.
using GroupNumber = uint64_t;
inline constexpr GroupNumber kGroupNumbers = GroupNumber{1} << 58;

/// Why a connection was not made, and what that says of the peer.
struct Unmade {
  enum class Peer : uint8_t {
    kUnknown,  // it was reached, or this end is the cause
    kEnded,    // nobody listens at its address any more, or somebody else does
    kSilent,   // its host does not answer, or cannot be reached
  };
  Error why;
  Peer peer = Peer::kUnknown;
};

class Connector : public Dialer {
 public:
  /// Listens. `loop` serves the listening sockets. Throws Error(kTransport) /
  /// Error(kInvalidArgument) naming interface and cause (an interface that does not exist, the ones
  /// that do).
  Connector(Rank rank, const Config& config, EventLoop& loop);
  /// Listens at these, on the fastest kMostOffers at most. One at which it cannot is left out, with
  /// a warning; Error(kTransport) if there is no other.
  Connector(Rank rank, std::vector<Interface> interfaces, EventLoop& loop);
  ~Connector() override;

  /// Where this rank listens; to be published to the peers (bootstrap/networks.h).
  std::string offers() const;
  /// Tells what the exchange brought: everybody's offers and the job's secret, before the first
  /// dial(). Throws Error(kTransport) naming the rank whose offers cannot be read, or if there is
  /// no network to try (bootstrap/networks.h).
  void set_peers(const std::vector<std::string>& offers, std::string secret);

  // Which network: docs/cluster.md, "Several networks". Until settle_networks() a dial() goes
  // through the networks that ranks may have in common until one answers.

  /// Tries the networks, if there are several, between the lowest ranks of each network stack (of
  /// each host, but for containers): those connect to one another, and measure; the others need not
  /// be here yet. What was found, to be published. Throws Error(kTimeout) naming the peer that does
  /// not answer any more.
  std::string try_networks(Deadline deadline);
  /// Takes the findings of all ranks; from now on dial() uses what follows from them, and nothing
  /// else listens. Throws Error(kTransport), alike on all ranks, if no network reaches everybody,
  /// with the hosts, their addresses (`describe` says who a rank is) and the reasons.
  void settle_networks(std::span<const std::string> findings,
                       const std::function<std::string(Rank)>& describe);
  /// "10.0.0.0/24 (eth0, 118 MB/s)", of those that are used; rates where they were measured.
  std::string network() const;

  /// One connection; several at once: bootstrap/dials.h. Throws Error(kTimeout), Error(kTransport),
  /// or Error(kPeerLost) if nobody listens where the peer did, naming peer, address, channel and
  /// cause, or Error(kInvalidArgument) on both ends if their secrets differ. The socket is
  /// non-blocking and tuned. Any thread but the loop's.
  Fd dial(Rank peer, uint32_t channel, Deadline deadline) override {
    return dial(peer, channel, deadline, 0);
  }
  /// The same for a group, whose channels are not those of others.
  Fd dial(Rank peer, uint32_t channel, Deadline deadline, GroupNumber group);

  // Connections that either end may need first, and has made: then the other has it as well. Where
  // both ask for one at once there is one all the same: of the two that are made, the lower rank
  // lets in that of the higher only if it has not begun to make its own, and says so.

  /// Has a connection made for messages of the group, if there is none. Never blocks, on any
  /// thread. It tries to the deadline.
  void call(Rank peer, GroupNumber group, Deadline deadline);
  /// The connection for messages, once it is there, whoever has made it; else none. Throws what
  /// call() has met, as dial().
  Fd take_call(Rank peer, GroupNumber group);
  /// Those whose connections for messages can be taken.
  std::vector<Rank> callers(GroupNumber group);
  /// `news` is called, on any thread, when there is something to take.
  void listen_for_calls(GroupNumber group, std::function<void()> news);
  /// Nobody will take any: ends those that are being made, and what was made.
  void end_calls(GroupNumber group);

  /// Has a lifeline made in the same way. `adopt` gets it, on any thread, unless it was the peer
  /// that made it, and `done` is called last, with what has kept it from being made. False: nothing
  /// of this happens.
  bool call_lifeline(Rank peer, Deadline deadline, std::function<void(Fd)> adopt,
                     std::function<void(const std::optional<Unmade>&)> done);
  /// Gets the lifelines that peers make, on the thread that lets them in, before anybody dials one.
  void adopt_lifelines(std::function<void(Rank, Fd)> adopt);
  /// Nothing is dialled, called or adopted any more; waits for what is.
  void stop();

  /// Ends each dial for the group, now and later, with Error(kTransport): it has failed. Any
  /// thread.
  void interrupt(GroupNumber group);
  /// Nobody will dial for the group any more: closes connections to it that nobody took, and those
  /// that still come. Not for that of all ranks.
  void forget(GroupNumber group);
  /// Connections that were closed because they did not know the secret, spoke something else, or
  /// came too late.
  uint64_t rejected() const;

 private:
  friend class Dials;
  struct State;

  std::unique_ptr<State> state_;
};

/// 32 random bytes, as hex, for a job without a secret of its own.
std::string random_secret();

}  // namespace ringcoll
