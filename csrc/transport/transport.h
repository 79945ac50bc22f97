// The seam between collectives and networks. A transport makes endpoints; an endpoint is one
// ordered, reliable link to one peer. Nothing above this folder names a transport; nothing in it
// knows schedules, collectives or reductions.
//
// Thread rule: all calls on the endpoints of one transport come from one thread at a time (whoever
// holds the communicator's execution lock), except wake(), which any thread may call. A part of a
// transport (Transport::part) counts as another one.
// Nothing here calls back. Waiting: only wait() blocks, and never longer than it is told.
// Everything else returns at once, or throws Error(kTransport / kPeerLost) that names the call, the
// reason and the link.
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

/// What the sender says of a message besides its bytes, for the receiver's layer of the same kind:
/// no transport looks into it. On the wire as it is.
struct Envelope {
  std::array<uint64_t, 3> words{};

  /// Of a struct as long, and back. What is sent has fixed widths and no padding.
  template <typename T>
  static Envelope of(const T& content) {
    static_assert(std::has_unique_object_representations_v<T>);
    return {std::bit_cast<std::array<uint64_t, 3>>(content)};
  }
  template <typename T>
  T as() const {
    return std::bit_cast<T>(words);
  }
  /// Word by word: that of std::array calls memcmp, for each message.
  bool operator==(const Envelope& other) const {
    return ((words[0] ^ other.words[0]) | (words[1] ^ other.words[1]) |
            (words[2] ^ other.words[2])) == 0;
  }
};
static_assert(sizeof(Envelope) == 24);

/// Received bytes, in place: on shm the peer's arena, on tcp a receive buffer or the `place` that
/// was offered. Valid until release().
struct View {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  Envelope envelope;
};

/// Messages that every link takes before the peer releases one, or tells that it did. A caller that
/// waits for a credit, and receives nothing meanwhile, keeps no more than these on their way to a
/// peer; else ranks may wait for one another in a circle.
inline constexpr uint64_t kLeastCredits = 24;

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// Setting up goes in steps, each made for all new links before the next, so that ranks that join
  /// several peers cannot wait for one another in a ring: Transport::connect() on both ends; then
  /// try_establish(), which needs what the peer's connect() sent; then try_prove(), which needs
  /// what its try_establish() did and shows that the link carries data. False: not yet; wait(),
  /// then again. After the deadline a step that knows why it gets nowhere throws Error(kTimeout)
  /// with cause and remedy; the others leave it to the caller, who knows whom to blame.
  virtual bool try_establish(Deadline /*deadline*/) { return true; }
  virtual bool try_prove(Deadline /*deadline*/) { return true; }
  /// Says ahead where the payload of a message to come is wanted, so that a transport can have the
  /// peer write it there: `place` (may be null: anywhere) of `capacity` bytes, unused until that
  /// message has been received. The n-th call is about the n-th message; a caller that expects at
  /// all expects every message, before it is received. try_recv offers the same place again.
  /// Who does not know what comes expects nothing, on any transport: it peeks, and then offers the
  /// place to try_recv, which the sender's progress() is told of where it needs it; that costs a
  /// turn more.
  virtual void expect(void* /*place*/, uint64_t /*capacity*/) {}
  /// Memory of the link's own to write a message of so many bytes into, which is then sent from
  /// there (try_send) and is the peer's from then on. Null: there is none now; the arena is always
  /// right. Where there is, it was the peer's last, and this core has read it: that is the cheapest
  /// memory to write. Once taken it is for the next message that is sent from it, whichever.
  virtual std::byte* take_buffer(uint64_t /*bytes*/) { return nullptr; }
  /// Sends the next message (0 bytes allowed) and returns its number: 1, 2, 3 … 0: no credit now,
  /// nothing was taken; progress(), then again. `data` must stay unchanged until completed() has
  /// reached the number. It lies in the arena, in a buffer that was taken or in memory that was
  /// lent, unless bytes <= Config::inline_bytes; what is so short has been copied when this returns
  /// but for links of a network, whatever completed() says.
  virtual uint64_t try_send(const Envelope& envelope, const void* data, uint64_t bytes) = 0;
  /// How many messages have left, so that their memory may be written again. Never falls.
  virtual uint64_t completed() = 0;
  /// What comes next, before it is taken: true if the header of the next message is there. The same
  /// message until try_recv() has returned it. Ends as try_recv() does where the peer has gone.
  virtual bool try_peek(Envelope* envelope, uint64_t* bytes) = 0;
  /// Takes the next message if it is all there. `place` (may be null), of `capacity` bytes, is
  /// where the caller would like the payload: a transport that copies anyway puts it there,
  /// view->data says where it is. Once a call has offered a place and returned false, the next call
  /// offers the same one. A message longer than `capacity` is returned with data == nullptr (its
  /// payload is dropped): the caller reports it. It is released like any other.
  virtual bool try_recv(void* place, uint64_t capacity, View* view) = 0;
  /// Gives the oldest view back. Views are released in the order in which they were received.
  virtual void release() = 0;
  /// Moves what can be moved without waiting: sends that are queued, credits. True if anything
  /// moved.
  virtual bool progress() = 0;
  /// Whether the peer has all that it cannot do without. A caller that leaves asks, with wait() in
  /// between, until it is so or the peer is gone: the destructor waits for nothing.
  virtual bool drained() { return true; }
  /// True while sends are queued that move only when progress() is called: the caller does so
  /// before it goes away.
  virtual bool busy() const { return false; }
  /// Blocks until a message or a credit of this peer may be there, wake() is called, or `limit` has
  /// passed. May return early. The caller has just seen try_recv or completed() not advance.
  virtual void wait(Duration limit) = 0;
  /// Whether what is lent can be sent to the peer as it lies. Where it cannot, it goes through the
  /// arena. May become true with time, never false.
  virtual bool takes_lent() const { return true; }
  /// After a failure: when it has returned, what was lent may be written to, and a peer that has
  /// not taken it does not take it for what it was. For links whose transport does not see to that
  /// (Transport::revoke).
  virtual void revoke() noexcept {}
  /// Whether read_peer() works on this link, as was tried before it was made.
  virtual bool reads_peer() const { return false; }
  /// Copies from the memory of the peer's process, whatever it is, at the address that it has
  /// there. False, with an unspecified part of it copied: that memory is not there (any more).
  /// Throws Error(kPeerLost) if the process is gone. With a `word`, the eight bytes at `word_at`
  /// are copied, too, after all of the rest, and tell whose memory it was: the caller knows what
  /// nobody else has there.
  virtual bool read_peer(uint64_t /*address*/, void* /*place*/, uint64_t /*bytes*/,
                         uint64_t /*word_at*/, uint64_t* /*word*/) {
    return false;
  }
  bool read_peer(uint64_t address, void* place, uint64_t bytes) {
    return read_peer(address, place, bytes, 0, nullptr);
  }
  /// Makes a wait() that runs in another thread return soon (at the latest after the limit it was
  /// given), else the next one. Where the endpoints of a transport share what wakes them, that may
  /// be the wait of another of them: whoever returns from a wait looks at all that it waits for.
  virtual void wake() = 0;
};

/// Where ranks are, for a transport whose ranks share something of their machine.
struct Seats {
  std::vector<int> machine_of;        // by rank; empty: nothing is known
  std::vector<Rank> order;            // of the ring
  std::map<int, int> node_distances;  // from this rank's NUMA node; empty: it has not one
};

/// What a transport is given. References outlive it.
struct TransportOptions {
  Rank rank = 0;
  Rank size = 1;
  const Config& config;
  SharedMemory& arena;  // shared with the domain; sends come from here
  Deadline deadline;    // of the setup
  Seats seats = {};
  size_t arena_bytes = 0;  // the first so many are this transport's own, the rest is for parts
                           // (TransportPart::extent); 0: all are its own
  size_t part_bytes = size_t{2} << 30;  // of addresses, for what it keeps for parts; agreed

  /// What this transport's own long messages are sent from.
  std::span<std::byte> own_arena() const {
    return {arena.data(), arena_bytes > 0 ? arena_bytes : arena.bytes()};
  }
};

/// Some of a transport's ranks, in an order, with links of their own. All of them name the same
/// members in the same order. What it refers to outlives the transport that is made of it, but for
/// `members`, which are copied.
struct TransportPart {
  Rank rank = 0;              // of this process in it
  std::vector<Rank> members;  // by the part's ranks: the transport's own ranks
  /// Of the arena: long messages come from it, or from what is lent. Of a transport that registers
  /// it (Transport::registers_extents) no more than this part uses.
  std::span<std::byte> extent;
  /// Its owner waits for all links at once (Transport::stirs), and is woken by this; null: for one
  /// at a time (Endpoint::wait).
  Bell* bell = nullptr;
};

/// Memory of the caller's, offered to a transport for one call.
struct Loan {
  std::byte* data = nullptr;  // not written to unless `written`
  size_t bytes = 0;
  bool written = false;
  bool granted = false;
};

/// Who may still take, out of its extent, what a part has sent that has ended since. The whole
/// transport outlives it. One thread at a time.
class Readers {
 public:
  virtual ~Readers() = default;
  /// Whether there is one: who has taken all, has ended the part as well, or was lost, is none.
  virtual bool any() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// What peers need to know to reach this rank by this transport; at most kMaxAddressBytes.
  /// Exchanged by the caller.
  virtual std::string address() const = 0;
  /// Proves that the peer with this address can be reached, by doing it (mapping its page and
  /// comparing a nonce). "" if so, else the reason in words. The peer's answer may differ; the
  /// caller joins both.
  virtual std::string reach(Rank peer, std::string_view address) = 0;
  /// How many sockets the link to the peer takes, once that was reached; the same on both sides. No
  /// transport connects any by itself: its caller does so for many links at once.
  virtual size_t sockets_to(Rank /*peer*/) const { return 0; }
  /// The link, on demand, after reach() was asked of all peers, and "" on both sides. Both ends
  /// call it, and the link's try_establish() and try_prove(), before either sends. `sockets`: as
  /// many as sockets_to() says, authenticated TCP connections to the peer, of this link alone, in
  /// an order that both ends have. Waits for nothing that the peer has yet to do.
  virtual std::unique_ptr<Endpoint> connect(Rank peer, std::vector<Fd> sockets,
                                            Deadline deadline) = 0;
  /// Whether its endpoints want to be told ahead what is received (Endpoint::expect).
  virtual bool wants_places() const { return false; }
  /// Whether long messages, too, are sent from any memory as it lies.
  virtual bool sends_from_anywhere() const { return false; }
  /// The port of its machine that a rank uses ("mlx5_0:1"), once every rank that is reached has
  /// been; "" if the transport knows of none. Equal on all ranks.
  virtual std::string port_of(Rank /*rank*/) { return ""; }
  /// Grants loans at the beginning of a call: sends may come from that memory, and receives go
  /// there where it is `written`, without a copy. They end with the call, when all sends from them
  /// are complete. What is not granted has to go through the arena. Of the calls that lent before,
  /// the last `in_flight` have not ended.
  virtual void lend(std::span<Loan> /*loans*/, size_t /*in_flight*/) {}
  /// After a failure: when it has returned, neither a device nor a peer touches what was lent.
  virtual void revoke() noexcept {}
  /// A transport of these ranks alone. It shares with this one what peers and devices know already
  /// (mapped memory, open ports), and is otherwise independent: its endpoints are used by another
  /// thread at the same time. It has an address of its own, of at most kMaxPartAddressBytes, which
  /// its peers get by reach() (asked once for every other member that is to be connected, which may
  /// have ended its part by then) before connect(), as with any transport. To be called after this
  /// transport's reach() was asked for all its peers; from any thread, also while others use this
  /// transport or other parts of it, and so is a part's destructor. This transport outlives its
  /// parts; what a part used is free again when it is destroyed. A part has no parts.
  virtual std::unique_ptr<Transport> part(const TransportPart& part) = 0;
  /// Whether the extent of a part is registered with a device, and so has to stay the same.
  virtual bool registers_extents() const { return false; }
  /// Of a part: who is to be waited for before what was sent so far may be overwritten, where a
  /// peer reads the memory of this rank (LinkClass::kHost). Null: nobody. Asked when nothing is
  /// being sent, also after its endpoints are gone.
  virtual std::unique_ptr<Readers> readers() { return nullptr; }
  /// The peer's process has ended, without ending what it was in: nothing is kept for it any more.
  /// Not of one whose connection was lost and that may live. Any thread; more than once.
  virtual void ended(Rank /*peer*/) {}

  // Of a part with a bell, which one end may connect alone: links that take sockets when it has
  // them, whose other ends the peer will get, others at any time.

  /// Whether the peer has connected to this rank, or may have, as far as is seen without a message:
  /// this rank then connects, too. Not for links of class kNetwork.
  virtual bool called_by(Rank /*peer*/) { return true; }
  /// Whether on any link something that was looked for in vain may be there. Takes no message, but
  /// moves queued sends. With `sleep`: if not, and called_by() is false of all others when asked
  /// after this, the caller is about to poll() the bell and what is added here, and calls rested()
  /// then; meanwhile peers ring. A link that fails, or whose peer has gone, stirs once: looking at
  /// it throws.
  virtual bool stirs(std::vector<pollfd>* /*sleep*/) { return true; }
  /// That wait is over, whether or not it slept.
  virtual void rested() {}
};
inline constexpr size_t kMaxAddressBytes = 2048;
inline constexpr size_t kMaxPartAddressBytes = 16;

/// Result of a probe: usable, or the reason why not and the remedy.
struct Probe {
  bool usable = false;
  std::string detail;
};

/// How near a link is; the order is that of preference.
enum class LinkClass : uint8_t { kProcess, kHost, kNetwork };

/// One row of the registry; the conformance suite tests every row unasked. docs/contributing.md
/// shows how to add one.
struct TransportRow {
  std::string_view name;
  std::string_view help;
  LinkClass link;
  bool automatic;  // chosen without being named
  Probe (*probe)(const Config&);
  std::unique_ptr<Transport> (*make)(const TransportOptions&);
  // What there is of it here, as JSON, for `ringcoll doctor`; null where the probe says it all.
  std::string (*found)(const Config&) = nullptr;
  // Those that it alone reads, which name it as their owner; null: none.
  const std::vector<KnobRow>& (*knobs)() = nullptr;
};

/// In order of preference: the first that both ends reach is used for a pair.
std::span<const TransportRow> transports();
const TransportRow* find_transport(std::string_view name);

}  // namespace ringcoll
