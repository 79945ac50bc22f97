// The channels of a group for messages that arrive in any order and from any rank, such as sends
// and receives with tags. They are independent of the channels for calls (mesh/group/channels.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/types.h"
#include "transport/transport.h"

namespace ringcoll {

/// Ranks are group ranks. The end that needs a channel first opens it; the other end finds it open.
/// One thread at a time, except wake(). Failures throw as on channels of calls: the group's first
/// error if it has failed, else Error(kPeerLost / kTransport).
class MessageChannels {
 public:
  virtual ~MessageChannels() = default;
  virtual Rank rank() const = 0;
  virtual Rank size() const = 0;
  /// Begins or continues to open the channel to a peer. Returns true when it is open. Never blocks.
  /// Throws Error (kPeerLost, kTransport, kTimeout) if it cannot be opened.
  virtual bool try_open(Rank peer) = 0;
  /// Accepts channels that peers open, continues to open channels, and moves queued sends. Never
  /// blocks. Returns true if anything moved.
  virtual bool progress() = 0;
  /// The peers whose channel is open. The list only grows, at its end.
  virtual const std::vector<Rank>& open() const = 0;
  /// Precondition: the peer's channel is open. Callers never call expect() on it, and its transport
  /// does not need that.
  virtual Endpoint& operator[](Rank peer) = 0;
  /// Closes the channel after it failed or its peer left. Nobody uses or waits for it any more,
  /// though it stays in open(). Later calls of try_open() throw Error(kPeerLost).
  virtual void drop(Rank peer) = 0;
  /// Memory of the arena for long messages on any channel, used by this object alone. Messages of
  /// up to inline_bytes() may come from any memory.
  virtual std::span<std::byte> staging() = 0;
  virtual uint64_t inline_bytes() const = 0;
  /// The longest message to the peer that its channel copies when it is sent (HostLink::try_copy).
  virtual uint64_t copies_up_to(Rank peer) const = 0;
  /// True if messages to the peer can be sent from any memory without a copy (tcp, loopback).
  virtual bool sends_from_anywhere(Rank peer) const = 0;
  /// Lends memory of the caller to an open peer. Messages are then sent from it, and if it is
  /// `written` also received into it, without a copy (Transport::lend). Returns the number of the
  /// loan, greater than all before; 0 if it is not granted, as on links within a host. `oldest` is
  /// the least number of a loan still in use, or 0 if there is none.
  virtual uint64_t lend(Rank peer, Loan loan, uint64_t oldest) = 0;
  /// Called when the channels are no longer usable while loans are in use, and no other thread is
  /// in wait(). When it returns, neither a device nor a peer touches lent memory. Messages in
  /// flight may be lost.
  virtual void revoke() noexcept = 0;
  /// Blocks until an open channel may have a message or a credit, a peer opens a channel, wake() is
  /// called, or `limit` has passed. May return early. Precondition: the last progress() and
  /// receives moved nothing. `bytes`: how much a peer on the host may be copying now; the wait
  /// polls longer for it.
  virtual void wait(Duration limit, uint64_t bytes) = 0;
  /// Makes a running wait() return soon, else the next one. Any thread.
  virtual void wake() = 0;
};

}  // namespace ringcoll
