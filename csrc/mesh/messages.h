// The channels of a group for messages that come in any order and from anybody, as sends and
// receives with tags are: beside those of its calls (mesh/channels.h), and independent of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/types.h"
#include "transport/transport.h"

namespace ringcoll {

/// Ranks are the group's. A channel is opened by whoever needs it first; the other finds it open.
/// One thread at a time, but for wake(). What fails throws as channels of calls do: the group's
/// first error if it has failed, else Error(kPeerLost / kTransport).
class MessageChannels {
 public:
  virtual ~MessageChannels() = default;
  virtual Rank rank() const = 0;
  virtual Rank size() const = 0;
  /// Begins to open the channel to a peer, or goes on with it. True: it is open. Never blocks.
  /// Throws Error (kPeerLost, kTransport) if it cannot be opened.
  virtual bool try_open(Rank peer) = 0;
  /// Takes what peers have opened, goes on with what is being opened, moves queued sends. Never
  /// blocks. True if anything moved.
  virtual bool progress() = 0;
  /// Peers whose channel is open; grows at its end only.
  virtual const std::vector<Rank>& open() const = 0;
  /// Of a peer whose channel is open. Nobody calls expect() on it; no place need be told ahead
  /// (Endpoint::expect).
  virtual Endpoint& operator[](Rank peer) = 0;
  /// The channel has failed, or its peer has left: it is closed, and neither used nor waited for
  /// any more, though it stays in open(). From then on try_open() throws Error(kPeerLost).
  virtual void drop(Rank peer) = 0;
  /// Memory that long messages can be sent from on any channel: of the arena, and this object's
  /// alone. Messages of up to inline_bytes() come from anywhere.
  virtual std::span<std::byte> staging() = 0;
  virtual uint64_t inline_bytes() const = 0;
  /// Whether a message to the peer can be sent from any memory as it lies (tcp, loopback).
  virtual bool sends_from_anywhere(Rank peer) const = 0;
  /// Lends memory of the caller's, of which messages to an open peer are then sent as they lie, and
  /// to which, if it is `written`, they come without a copy (Transport::lend). Returns its number,
  /// greater than those before; 0: not granted, as always where links take none. `oldest`: the
  /// least number of what was lent and is still used; 0: nothing is.
  virtual uint64_t lend(Rank peer, Loan loan, uint64_t oldest) = 0;
  /// Of no use any more while something is lent, and no other thread is in wait(): when it has
  /// returned, neither a device nor a peer touches that. What is on its way may be lost with it.
  virtual void revoke() noexcept = 0;
  /// Blocks until on some open channel a message or a credit may be there, a peer opens one, wake()
  /// is called, or `limit` has passed. May return early. The caller has just seen nothing move.
  /// `bytes`: that a peer on the host may be copying now; it polls for as much longer.
  virtual void wait(Duration limit, uint64_t bytes) = 0;
  /// Any thread: makes a wait() that runs return soon, else the next one.
  virtual void wake() = 0;
};

}  // namespace ringcoll
