// The seam between collectives and networks. A transport makes endpoints; an endpoint is one
// ordered, reliable link to one peer. Code above this folder names no transport. Code in this
// folder knows no schedules, collectives or reductions.
//
// Thread rule: one thread at a time calls the endpoints of one transport. For calls that is the
// thread that executes them, and for messages the thread that moves them (docs/design.md, "Threads
// and waiting"). A part of a transport (Transport::part) counts as a transport of its own.
//
// No function calls back, and none waits for a peer. Every function returns at once, or throws
// Error(kTransport / kPeerLost) that names the call, the reason and the link. A caller that
// waits polls, or sleeps for all links of its transports at once (wait_set.h).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/fd.h"
#include "base/types.h"
#include "shm/shared_memory.h"

struct pollfd;

namespace ringcoll {

class Bell;
struct KnobRow;

/// What the sender says about a message besides its bytes. Transports do not look into it; the
/// layer above the receiver's transport does. It is sent as it is in memory.
struct Envelope {
  std::array<uint64_t, 3> words{};

  /// Makes an envelope of a struct of the same size; as() converts back. A struct that is sent has
  /// members of fixed width and no padding.
  template <typename T>
  static Envelope of(const T& content) {
    static_assert(std::has_unique_object_representations_v<T>);
    return {std::bit_cast<std::array<uint64_t, 3>>(content)};
  }
  template <typename T>
  T as() const {
    return std::bit_cast<T>(words);
  }
  /// Compares word by word: operator== of std::array would call memcmp() for each message.
  bool operator==(const Envelope& other) const {
    return ((words[0] ^ other.words[0]) | (words[1] ^ other.words[1]) |
            (words[2] ^ other.words[2])) == 0;
  }
};
static_assert(sizeof(Envelope) == 24);

/// A received payload, where it lies: on shm in the peer's arena, on tcp in a receive buffer or in
/// the `place` that was offered. Valid until release().
struct View {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  Envelope envelope;
};

/// A stretch of memory that is part of a message.
struct Slice {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
};

/// Every link takes at least so many messages before the peer releases one, or reports a release. A
/// caller that waits for a credit, and receives nothing meanwhile, keeps no more than these under
/// way to one peer. Otherwise ranks may wait for one another in a circle.
inline constexpr uint64_t kLeastCredits = 16;

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// Setup has three steps: Transport::connect() on both ends, then try_establish(), then
  /// try_prove(). A caller makes each step for all new links before the next step. So ranks that
  /// connect to several peers cannot wait for one another in a circle. The step try_establish()
  /// needs what the peer's connect() sent. The step try_prove() needs what the peer's
  /// try_establish() did, and shows that the link carries data.
  ///
  /// False: not yet; wait, then try again. After the deadline, a step that knows the cause
  /// throws Error(kTimeout) with cause and remedy. Otherwise the caller handles the timeout, since
  /// it knows which rank to blame.
  virtual bool try_establish(Deadline /*deadline*/) { return true; }
  virtual bool try_prove(Deadline /*deadline*/) { return true; }
  /// Announces where the payload of a later message is wanted, so that a transport can have the
  /// peer write it there. `place` has `capacity` bytes, and is unused until that message has been
  /// received; null means anywhere. The n-th call is about the n-th message. A caller that uses
  /// expect() calls it for every message, before it receives that message. It then offers the same
  /// place to try_recv().
  ///
  /// A receiver that does not know the next message skips expect(), on any transport. It calls
  /// try_peek(), then passes a place to try_recv(). On RDMA, progress() of the sender only then
  /// learns the place, which costs one more round trip.
  virtual void expect(void* /*place*/, uint64_t /*capacity*/) {}
  /// Sends the next message (0 bytes allowed) and returns its number: 1, 2, 3 and so on. Returns 0,
  /// and takes nothing, if there is no credit now; call progress(), then try again.
  ///
  /// `data` is **kept**: it must stay unchanged until completed() has reached the number. It lies
  /// in the arena or in lent memory, unless bytes <= Config::inline_bytes or
  /// Transport::sends_from_anywhere(). On links within a host, a message of at most inline_bytes
  /// has been copied when this returns, whatever completed() says.
  virtual uint64_t try_send(const Envelope& envelope, const void* data, uint64_t bytes) = 0;
  /// How many messages have left, in order, so that their memory may be written again. Never falls.
  virtual uint64_t completed() = 0;
  /// True if the header of the next message is there; stores its envelope and length. It is the
  /// same message until try_recv() has returned it. Throws as try_recv() does if the peer has gone.
  virtual bool try_peek(Envelope* envelope, uint64_t* bytes) = 0;
  /// Takes the next message if all of it is there. `place` (may be null), of `capacity` bytes, is
  /// where the caller would like the payload. A transport that copies anyway puts it there;
  /// view->data says where it is. After a call that offered a place and returned false, the next
  /// call offers the same one. A message longer than `capacity` is returned with data == nullptr:
  /// its payload is dropped, and the caller reports it. It is released like any other.
  virtual bool try_recv(void* place, uint64_t capacity, View* view) = 0;
  /// Gives the oldest view back. Views are released in the order in which they were received.
  virtual void release() = 0;
  /// Moves what can move without waiting: queued sends and credits. True if anything moved.
  virtual bool progress() = 0;
  /// Whether the peer has everything that it needs from this end. Before it leaves, a caller
  /// waits until this is true or the peer is gone. The destructor does not wait for it.
  virtual bool drained() { return true; }
  /// True while sends are queued that only progress() moves. The caller calls it before it stops
  /// using the link.
  virtual bool busy() const { return false; }
  /// After a failure: when this has returned, the caller may write to lent memory. A peer that has
  /// not read it yet notices, and does not take it for the message. For links whose transport
  /// leaves that to them (Transport::revoke).
  virtual void revoke() noexcept {}
};

/// What only links within a host can do. Such an endpoint is a HostLink, too. A caller that needs
/// one asks host_link() once for each link.
class HostLink {
 public:
  virtual ~HostLink() = default;
  /// Sends as Endpoint::try_send() does, from any memory, and **copies**: when this returns, the
  /// memory is the caller's again. `slices` are `bytes` together, at most
  /// Transport::copies_up_to().
  virtual uint64_t try_copy(const Envelope& envelope, std::span<const Slice> slices,
                            uint64_t bytes) = 0;
  /// Whether lent memory can be sent to the peer without a copy. If not, its payload goes through
  /// the arena. May become true with time, never false.
  virtual bool takes_lent() const = 0;
  /// Whether read_peer() works on this link; tried before the link was made.
  virtual bool reads_peer() const = 0;
  /// Copies from any memory of the peer's process, at the address that it has there. False: that
  /// memory is not there (any more), and an unspecified part has been copied. Throws
  /// Error(kPeerLost) if the process is gone. With a `word`, the eight bytes at `word_at` are
  /// copied, too, after all of the rest. The caller knows a value that no other process has there,
  /// so the word proves whose memory it was.
  virtual bool read_peer(uint64_t address, void* place, uint64_t bytes, uint64_t word_at,
                         uint64_t* word) = 0;
  bool read_peer(uint64_t address, void* place, uint64_t bytes) {
    return read_peer(address, place, bytes, 0, nullptr);
  }
};
/// The link as a HostLink; null if it is not within a host.
inline HostLink* host_link(Endpoint& link) { return dynamic_cast<HostLink*>(&link); }

/// Where ranks are, for transports whose ranks share parts of a machine.
struct Seats {
  std::vector<int> machine_of;        // by rank; empty: nothing is known
  std::vector<Rank> order;            // ranks in the order of the ring
  std::map<int, int> node_distances;  // from this rank's NUMA node; empty: it has none
};

/// The arguments from which a transport is made. The references outlive the transport.
struct TransportOptions {
  Rank rank = 0;
  Rank size = 1;
  const Config& config;
  SharedMemory& arena;  // shared with the mesh; sends come from here
  Deadline deadline;    // of the setup
  Seats seats = {};
  size_t arena_bytes = 0;  // of the arena: the first bytes are this transport's own, the rest is
                           // for parts (TransportPart::extent); 0: all are its own
  size_t part_bytes = size_t{2} << 30;  // address space kept for parts; equal on all ranks

  /// The stretch of the arena from which this transport sends its own long messages.
  std::span<std::byte> own_arena() const {
    return {arena.data(), arena_bytes > 0 ? arena_bytes : arena.bytes()};
  }
};

/// Describes a part: some of a transport's ranks, in an order, with links of their own. All members
/// name the same members in the same order. What this struct refers to outlives the part, except
/// `members`, which is copied.
struct TransportPart {
  Rank rank = 0;              // of this process in the part
  std::vector<Rank> members;  // by rank in the part: the rank in the transport
  /// The stretch of the arena that the part's long messages come from, unless they are lent. If the
  /// transport registers it (Transport::registers_extents), it is no longer than what the part
  /// uses.
  std::span<std::byte> extent;
  /// Whether the part's links have as many streams as the transport's own links, where these have
  /// several. Links for messages do not, since a job has many parts.
  bool has_streams = true;
};

/// A sleep for all links of some transports at once (wait_set.h).
struct Sleep {
  const Bell& bell;          // which peers on the host ring
  std::vector<pollfd>& fds;  // what is polled, the bell included
};

/// Memory of the caller, offered to a transport for one call.
struct Loan {
  std::byte* data = nullptr;  // not written to unless `written`
  size_t bytes = 0;
  bool written = false;
  bool granted = false;
};

/// The peers that may still read what a part has sent from its extent, although the part has ended
/// since. The transport that the part was made by outlives this. One thread at a time.
class Readers {
 public:
  virtual ~Readers() = default;
  /// Whether such a peer is left. A peer counts no more when it has taken all, has ended the part
  /// as well, or was lost.
  virtual bool any() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// What peers need to know to reach this rank by this transport; at most kMaxAddressBytes. The
  /// caller exchanges the addresses.
  virtual std::string address() const = 0;
  /// Proves that the peer with this address can be reached, by doing it (mapping its page and
  /// comparing a nonce). Returns "" if so, else the reason in words. The peer's answer may differ;
  /// the caller combines both.
  virtual std::string reach(Rank peer, std::string_view address) = 0;
  /// How many sockets the link to the peer takes, once reach() has succeeded; the same on both
  /// sides. No transport connects sockets by itself: its caller connects those of many links at
  /// once.
  virtual size_t sockets_to(Rank /*peer*/) const { return 0; }
  /// Makes the link, on demand. Precondition: reach() was asked of all peers, and returned "" on
  /// both sides. Both ends call connect(), then the link's try_establish() and try_prove(), before
  /// either sends. `sockets`: as many authenticated TCP connections to the peer as sockets_to()
  /// says, of this link alone, in the same order at both ends. Waits for nothing that the peer has
  /// yet to do.
  virtual std::unique_ptr<Endpoint> connect(Rank peer, std::vector<Fd> sockets,
                                            Deadline deadline) = 0;
  /// Whether its endpoints want to know ahead what is received (Endpoint::expect).
  virtual bool wants_places() const { return false; }
  /// Whether long messages, too, are sent from any memory without a copy.
  virtual bool sends_from_anywhere() const { return false; }
  /// The longest message that HostLink::try_copy() takes, on all links; 0: none.
  virtual uint64_t copies_up_to() const { return 0; }
  /// The port of its machine that a rank uses ("mlx5_0:1"); "" if the transport knows of none.
  /// Valid once reach() was asked of all ranks that are to be reached. All ranks get the same
  /// answer.
  virtual std::string port_of(Rank /*rank*/) { return ""; }
  /// Grants loans at the beginning of a call. Without a copy, sends may then come from that memory,
  /// and receives go there where it is `written`. A loan ends with its call, when all sends from it
  /// are complete. Payload in memory that is not granted goes through the arena. Of the earlier
  /// calls that lent memory, the last `in_flight` have not ended.
  virtual void lend(std::span<Loan> /*loans*/, size_t /*in_flight*/) {}
  /// After a failure: when this has returned, neither a device nor a peer touches lent memory.
  virtual void revoke() noexcept {}
  /// Makes a transport of these ranks alone. It shares with this one what is known of peers and
  /// devices (mapped memory, open ports). Otherwise it is independent: another thread may use its
  /// endpoints at the same time.
  ///
  /// A part has an address of its own, of at most kMaxPartAddressBytes. As with any transport,
  /// peers get it by reach() before connect(). The caller asks reach() once for every other member
  /// that is to be connected; that member may have ended its part by then.
  ///
  /// Precondition: this transport's reach() was asked for all its peers. Any thread may make or
  /// destroy a part while others use this transport or its parts. This transport outlives its
  /// parts. What a part used is free again when it is destroyed. A part has no parts.
  virtual std::unique_ptr<Transport> part(const TransportPart& part) = 0;
  /// Whether a device registers the extent of a part, so that it has to stay the same.
  virtual bool registers_extents() const { return false; }
  /// For a part: the peers that may still read what was sent so far, so that it must not be
  /// overwritten yet. Only where peers read this rank's memory (LinkClass::kHost). Null: none.
  /// Called while nothing is being sent; the endpoints may be gone.
  virtual std::unique_ptr<Readers> readers() { return nullptr; }
  /// Reports that the peer's process has ended without ending its parts: nothing is kept for it any
  /// more. Not for a peer that may live although its connection was lost. Any thread; more than
  /// once.
  virtual void ended(Rank /*peer*/) {}

  /// One end of a part may begin to connect a link alone. A link that takes sockets is connected
  /// when its sockets are there; the peer will get the other ends. Another link is connected at any
  /// time. This says whether the peer has connected to this rank, or may have, as far as is seen
  /// without a message. If so, this rank connects, too. Not for links of class kNetwork.
  virtual bool connected_by(Rank /*peer*/) { return true; }
  /// Whether any link may be ready: something that was looked for in vain since end_wait() may be
  /// there now. That is a message, a credit, a completion or a step of the setup. Takes no message,
  /// but moves queued sends, those of other links, too. A link that fails, or whose peer has gone,
  /// is ready once: looking at it throws.
  ///
  /// With `sleep`, the caller prepares to sleep: from here until end_wait(), peers notify it
  /// through the bell. If this returns false, and connected_by(), asked afterwards, is false for
  /// all other peers of a part, the caller may poll() the bell and the descriptors that were added.
  virtual bool may_be_ready(Sleep* sleep) = 0;
  /// Reports that the wait is over, whether or not the caller slept.
  virtual void end_wait() {}
};
inline constexpr size_t kMaxAddressBytes = 2048;
inline constexpr size_t kMaxPartAddressBytes = 16;

/// Result of a probe: usable, or the reason why not and the remedy.
struct Probe {
  bool usable = false;
  std::string detail;
};

/// How near a link is, in order of preference.
enum class LinkClass : uint8_t { kProcess, kHost, kNetwork };

/// One row of the registry. The conformance suite tests every row. docs/contributing.md shows how
/// to add one.
struct TransportRow {
  std::string_view name;
  std::string_view help;
  LinkClass link;
  bool automatic;  // chosen without being named
  Probe (*probe)(const Config&);
  std::unique_ptr<Transport> (*make)(const TransportOptions&);
  // What this host has for it, as JSON, for `ringcoll doctor`; null if the probe says everything.
  std::string (*found)(const Config&) = nullptr;
  // The knobs that it alone reads, which name it as their owner; null: none.
  const std::vector<KnobRow>& (*knobs)() = nullptr;
};

/// The most rows of the registry. Each takes some bytes of what ranks tell when they make a group.
inline constexpr size_t kMostTransports = 6;
/// In order of preference: a pair uses the first that both ends reach.
std::span<const TransportRow> transports();
const TransportRow* find_transport(std::string_view name);

}  // namespace ringcoll
