// What lies where in the control memory of a rank, and what a rank tells its peers to find it.
//
// Every rank writes only to memory of its own; its peers map that read-only. So a rank that goes
// mad can send nonsense (which is range-checked) but cannot damage what its peers work with.
// Payload alone may lie in memory that both ends of a link write, by turns: buffers that are handed
// over (handed.h), of each unit, in memory of their own.
//
//   page 0              ControlPage: proves that the right memory was mapped
//   then, per peer      a unit: what this rank tells that peer as a receiver and as a sleeper
//                       (PeerLines), and a ring of kEntries entries, the messages to it
//   then                spare units, for the peers of parts (reserve.h)
//
// All units are alike, whoever has them: where a stamp may stand, there never stands anything else.
// Their pages are only used (and paid for) once a pair talks.
//
// A unit serves many pairs, one after another. What its owner writes there for one of them is never
// taken for another's, since each word that tells a peer something of this pair's messages holds
// the owner's base of the time (reserve.h): whoever reads a word of another base has read nothing.
// The words without a base (`waiting`, the bell) are hints: a stale one costs a wake-up, or a look
// after 50 ms.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/shm/handed.h"
#include "transport/transport.h"

namespace ringcoll::shm {

inline constexpr uint32_t kVersion = 7;
inline constexpr uint64_t kMagic = 0x316d68736c6c6f63;  // "collshm1"

/// Messages to one peer that may be unreleased. Fewer stall pipelines that have more pieces in
/// flight; more cost memory (kEntries * inline_bytes a pair) and cache.
inline constexpr uint64_t kEntries = 32;
static_assert((kEntries & (kEntries - 1)) == 0, "a slot is found by a mask");
/// What a rank writes in the units of a part counts from a multiple of this, its base there
/// (reserve.h); in those of the whole it counts from 0. So many messages can go through a link: at
/// a million a second for two years. Bases come again after so many blocks.
inline constexpr uint64_t kBaseStep = uint64_t{1} << 46;
inline constexpr uint64_t kBases = uint64_t{1} << 18;

/// Small messages whose release the sender may not have been told yet.
inline constexpr uint64_t kLazyCredits = 8;
static_assert(kEntries - (kLazyCredits - 1) >= kLeastCredits);
static_assert(uint64_t{1} << HandedBuffers::kCount <= kBaseStep, "a base and a set are one word");

/// Cache lines are fetched in pairs, so words with different writers are two lines apart.
inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kApartBytes = 128;

/// What peers need to map this rank's memory; Transport::address() is this struct. All ranks run on
/// one host, hence one byte order and one build of the struct: fixed widths, no padding.
struct Address {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t rank = 0;
  int32_t size = 0;
  int32_t pid = 0;
  int32_t control_fd = -1;
  int32_t arena_fd = -1;
  uint64_t control_bytes = 0;
  uint64_t arena_bytes = 0;
  uint64_t nonce = 0;
  uint64_t nonce_at = 0;  // where the rank's process has it
  uint64_t inline_bytes = 0;
  uint64_t handed_bytes = 0;
  int32_t handed_fd = -1;
  int32_t unused = 0;
  char boot_id[40] = {};
};
static_assert(sizeof(Address) == 128 && sizeof(Address) <= kMaxAddressBytes);

/// Where in a rank's control memory its units for a part are; the part's address is this struct.
struct PartAddress {
  uint64_t base = 0;
  uint32_t first = 0;  // unit
  int32_t rank = 0;    // in the part
};
static_assert(sizeof(PartAddress) == 16 && sizeof(PartAddress) <= kMaxPartAddressBytes);

struct ControlPage {
  uint64_t magic;
  uint64_t nonce;
};

/// Written by this rank for one peer.
struct PeerLines {
  /// Number of the last message of the peer that this rank has released: the peer's credit. Above
  /// this rank's base.
  alignas(kApartBytes) std::atomic<uint64_t> released;
  /// In the first unit of a part: its base until it ends.
  std::atomic<uint64_t> open;
  /// In the first unit of the whole or of a part: non-zero while this rank sleeps, or is about to,
  /// for all of its peers there.
  alignas(kApartBytes) std::atomic<uint32_t> waiting;
  /// In the same unit, stored before `waiting`: what peers ring.
  std::atomic<int32_t> bell_fd;
  std::atomic<uint64_t> bell_inode;
  /// In a part: its base once this rank has connected to the peer, which may have to hear of it by
  /// no other way.
  std::atomic<uint64_t> connected;
  /// One above its base, if this rank can read the memory of the peer's process.
  std::atomic<uint64_t> reads;
  /// One above its base, until what this rank has lent to the peer is its caller's again although
  /// the peer may not have read it (Endpoint::revoke).
  std::atomic<uint64_t> lends;
  /// The buffers that this rank has given back to the peer (HandedBuffers::returned), above this
  /// rank's base.
  std::atomic<uint64_t> returned;
};
static_assert(sizeof(PeerLines) == 2 * kApartBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// No offset, and no address of a process, has one of these bits.
inline constexpr uint64_t kLent = uint64_t{1} << 63;
inline constexpr uint64_t kHanded = uint64_t{1} << 62;

/// One message. A payload of up to inline_bytes is beside it: 16 bytes arrive with the line that
/// says that they are there, and what is longer begins with the next, so that this line, on which
/// the receiver looks again and again, is written at the end and at once (written before the
/// payload, too, a broadcast of 256 B took 1.6 times as long, near cores of a Xeon).
struct Entry {
  /// Number of the message above the sender's base, written last; the receiver polls it.
  std::atomic<uint64_t> stamp;
  uint64_t bytes;
  /// Where the payload lies: with kHanded, the number of the buffer; else beside this, if it has at
  /// most inline_bytes; else in the sender's arena or, with kLent, in its process.
  uint64_t offset;
  Envelope envelope;

  static constexpr uint64_t payload_at(uint64_t bytes);
  std::byte* payload(uint64_t of_bytes) {
    return reinterpret_cast<std::byte*>(this) + payload_at(of_bytes);
  }
  const std::byte* payload(uint64_t of_bytes) const {
    return reinterpret_cast<const std::byte*>(this) + payload_at(of_bytes);
  }
};
static_assert(sizeof(Entry) == 48);
constexpr uint64_t Entry::payload_at(uint64_t bytes) {
  return bytes <= kLineBytes - sizeof(Entry) ? sizeof(Entry) : kLineBytes;
}

/// Parts of all ranks of a machine that spare units are for, two for a group; smaller ones use
/// fewer. Of a rank's file only what is used takes memory, but each of its peers maps all of it:
/// TransportOptions::part_bytes is the bound where many ranks have long inline messages.
inline constexpr uint64_t kSpareParts = 2 * 4096 + 2;

/// Buffers have at most this share of TransportOptions::part_bytes, but all units of the whole have
/// some. They take memory where a pair uses them, but address space of all peers.
inline constexpr uint64_t kHandedShare = 4;

/// Offsets in control memory, and in that of the buffers.
class Layout {
 public:
  /// Of `size` ranks, of which `sharers` can have memory in common and so be members of parts.
  Layout(Rank size, uint64_t inline_bytes, Rank sharers = 0, uint64_t handed_bytes = 0,
         uint64_t part_bytes = uint64_t{2} << 30)
      : stride_(up(Entry::payload_at(inline_bytes) + inline_bytes, kLineBytes)),
        handed_unit_bytes_(up(handed_bytes, kPageBytes) * HandedBuffers::kOfEach),
        whole_units_(static_cast<uint32_t>(size)),
        spare_units_(spare(static_cast<uint64_t>(sharers), part_bytes)),
        most_handed_bytes_(part_bytes / kHandedShare) {}

  uint64_t bytes() const { return lines(whole_units_ + spare_units_); }
  uint64_t stride() const { return stride_; }
  uint64_t unit_bytes() const { return sizeof(PeerLines) + stride_ * kEntries; }
  /// The unit for rank r of the whole is the r-th.
  uint32_t whole_units() const { return whole_units_; }
  uint32_t spare_units() const { return spare_units_; }
  uint64_t lines(uint32_t unit) const { return kPageBytes + unit_bytes() * unit; }
  uint64_t ring(uint32_t unit) const { return lines(unit) + sizeof(PeerLines); }
  /// Of a unit's buffers.
  uint64_t handed_unit_bytes() const { return handed_unit_bytes_; }
  uint64_t handed(uint32_t unit) const { return handed_unit_bytes_ * unit; }
  /// Units that have buffers are the first.
  uint32_t units_with_buffers() const {
    if (handed_unit_bytes_ == 0) return 0;
    uint64_t within = std::max<uint64_t>(whole_units_, most_handed_bytes_ / handed_unit_bytes_);
    return static_cast<uint32_t>(std::min<uint64_t>(whole_units_ + spare_units_, within));
  }

 private:
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr uint64_t up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }
  uint32_t spare(uint64_t sharers, uint64_t part_bytes) const {
    uint64_t most = std::max(part_bytes / unit_bytes(), sharers);
    return static_cast<uint32_t>(std::min(kSpareParts * sharers, most));
  }

  uint64_t stride_;
  uint64_t handed_unit_bytes_;
  uint32_t whole_units_;
  uint32_t spare_units_;
  uint64_t most_handed_bytes_;
};

}  // namespace ringcoll::shm
