// Authenticated TCP connections between the ranks of a job.
//
// At first each rank listens on every interface that may be used, and later only on those that are
// used. The lower rank of a pair connects and the higher accepts; some connections may be made by
// either. Both ends prove that they know the job's secret (HMAC over fresh nonces) before anything
// else is parsed. A connection has a deadline for that, and the number of unproven connections is
// limited. All others are closed and counted.
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
#include "connect/dialer.h"
#include "net/event_loop.h"

namespace ringcoll {

struct Interface;

/// Identifies a group of ranks, on all ranks of the job; no number is used twice. 0 is the group of
/// all ranks.
using GroupNumber = uint64_t;
inline constexpr GroupNumber kGroupNumbers = GroupNumber{1} << 58;
/// For connections that no group interrupts.
inline constexpr GroupNumber kNoGroup = kGroupNumbers;

/// Why a connection was not made, and what that tells about the peer.
struct Unmade {
  enum class PeerState : uint8_t {
    kUnknown,  // the peer was reached, or this end is the cause
    kEnded,    // nobody listens at the peer's address any more, or another process does
    kSilent,   // the peer's host does not answer or cannot be reached
  };
  Error why;
  PeerState peer = PeerState::kUnknown;
};

class Connector : public Dialer {
 public:
  /// Listens on the interfaces that `config` allows. `loop` serves the sockets and must outlive
  /// this. Throws Error(kTransport) or Error(kInvalidArgument), which names the interface and the
  /// cause. If an interface does not exist, the error names those that do.
  Connector(Rank rank, const Config& config, EventLoop& loop);
  /// Listens on the fastest kMostOffers of these interfaces at most. An interface that cannot be
  /// used is left out with a warning. Where loopback is down, listens on a local socket too, for
  /// ranks of this host. Throws Error(kTransport) if nothing is left.
  Connector(Rank rank, std::vector<Interface> interfaces, EventLoop& loop);
  ~Connector() override;

  /// Where this rank listens, as text to be published to the peers (connect/networks.h).
  std::string offers() const;
  /// Takes what the exchange brought: the offers of all ranks and the job's secret. Call it before
  /// the first dial(). Throws Error(kTransport) if a rank's offers cannot be read, naming the rank,
  /// or if there is no network to try (connect/networks.h).
  void set_peers(const std::vector<std::string>& offers, std::string secret);

  // Choice of the network: docs/cluster.md, "Several networks". Before settle_networks(), dial()
  // tries the networks that ranks may have in common until one answers.

  /// Tries the networks if there are several, and returns the findings, to be published. Only the
  /// lowest rank of each network stack (of each host, unless it has containers) connects and
  /// measures. The other ranks need not be here yet. Throws Error(kTimeout) naming a peer that was
  /// reached and then stopped answering.
  std::string try_networks(Deadline deadline);
  /// Takes the findings of all ranks and chooses the networks. From now on dial() uses only these,
  /// and the sockets of other interfaces are closed. If no network reaches all hosts, throws
  /// Error(kTransport) alike on all ranks. The error names hosts, addresses and reasons; `describe`
  /// names a rank.
  void settle_networks(std::span<const std::string> findings,
                       const std::function<std::string(Rank)>& describe);
  /// The networks that are used, as "10.0.0.0/24 (eth0, 118 MB/s)". A rate is shown if it was
  /// measured.
  std::string network() const;

  /// Which end connects.
  enum class Ends : uint8_t {
    kLower,   // both ranks begin the connection; the lower one connects, the higher one waits
    kEither,  // this rank connects, and the peer may; for lifelines and messages
  };
  /// A connection to a peer.
  struct Wanted {
    Rank peer;
    uint32_t channel;   // each group has channels of its own, but for kLifelineChannel
    GroupNumber group;  // interrupt() of this group ends the dial
    Ends ends;
  };
  /// Gets the connection, or why it was not made. The socket is non-blocking and tuned; it is empty
  /// for a lifeline that the peer has made and that was adopted. Must not throw.
  using Done = std::function<void(Fd, const std::optional<Unmade>&)>;
  /// Begins to make a connection in the background, and never blocks. All connections are made at
  /// the same time, kMostInFlight of them at most. `done` is called once, on any thread, maybe
  /// before this returns; at the latest when the deadline has passed. The error is Error(kTimeout),
  /// Error(kTransport), or Error(kPeerLost) if nobody listens at the peer's address any more. It
  /// names peer, address, channel and cause. If the secrets differ, both ends get
  /// Error(kInvalidArgument). Any thread.
  ///
  /// Once a connection of kEither is made, both ends have it. If both ends connect at once, one
  /// connection is kept. The lower rank accepts the one of the higher rank only if it has not begun
  /// its own, and tells the higher rank which.
  void begin(const Wanted& wanted, Deadline deadline, Done done);
  /// Most descriptors in flight at a time. Each may hold one of the 128 unproven places at the gate
  /// of a peer, and two such ranks may dial one peer at once. With more, gates would put
  /// connections off. With far fewer, jobs of hundreds of ranks would wait for round trips one
  /// after another. A connection that the peer makes takes one only while this rank probes whether
  /// the peer still listens.
  static constexpr size_t kMostInFlight = 64;

  /// Makes one connection (Ends::kLower) and waits for it. Throws the error that begin() reports.
  /// Any thread but the loop's.
  Fd dial(Rank peer, uint32_t channel, Deadline deadline) override {
    return dial(peer, channel, deadline, 0);
  }
  /// The same for a group's connection.
  Fd dial(Rank peer, uint32_t channel, Deadline deadline, GroupNumber group);

  /// Peers that have made the group's connection for messages, which this rank has not begun yet.
  /// begin() hands it over at once.
  std::vector<Rank> peers_with_messages(GroupNumber group);
  /// Calls `news`, on any thread, when there is one more such peer. A group has one listener.
  void listen_for_messages(GroupNumber group, std::function<void()> news);
  /// Ends the group's connections for messages: interrupts the group, and closes the connections
  /// that nobody took.
  void end_messages(GroupNumber group);

  /// Sets the receiver of lifelines that peers make; it runs on the event loop's thread. Call it
  /// before any rank dials a lifeline.
  void adopt_lifelines(std::function<void(Rank, Fd)> adopt);
  /// Refuses further connections, in both directions, and waits for those in flight.
  void stop();

  /// Ends every dial for the group, now and later, with Error(kTransport): the group has failed.
  /// Any thread.
  void interrupt(GroupNumber group);
  /// Ends a group for which nobody will dial again: closes its accepted connections that nobody
  /// took, and those that still come. Not for group 0.
  void forget(GroupNumber group);
  /// Number of connections closed because they did not know the secret, spoke another protocol, or
  /// missed their deadline.
  uint64_t rejected() const;
  /// A secret for this purpose that the ranks of the job have in common, and that tells nothing of
  /// the job's secret. After set_peers().
  std::string secret_for(std::string_view purpose) const;

 private:
  struct State;

  std::unique_ptr<State> state_;
};

/// The interfaces that the knobs and the launcher allow: RINGCOLL_INTERFACE, else the launcher's
/// setting if it fits this host, else all. Empty if there is none, and no loopback. Throws
/// Error(kTransport) or Error(kInvalidArgument), which names the interfaces that exist.
std::vector<Interface> own_interfaces(const Config& config);

/// 32 random bytes as hex, for a job that was given no secret.
std::string random_secret();

}  // namespace ringcoll
