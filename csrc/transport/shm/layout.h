// The layout of a rank's control memory, and what a rank tells its peers so that they find it.
//
// Every rank writes only to memory of its own, and its peers map that read-only. So a corrupt rank
// can send nonsense, which is range-checked, but it cannot damage its peers' memory. The exception
// is payload in buffers that are handed over (handed.h). Both ends of a link write these in turn;
// each unit has its own, in separate memory.
//
//   page 0              ControlPage: proves that the right memory was mapped
//   then, per peer      a unit: what this rank tells that peer as a receiver and as a sleeper
//                       (PeerLines), and a ring of kEntries entries, the messages to it
//   then                spare units, for the peers of parts (reserve.h)
//
// All units have the same layout, whoever uses them: a word that may be a stamp is never anything
// else. Pages take memory only once a pair communicates. The whole transport, as opposed to its
// parts, is called "the whole" in this folder.
//
// A unit serves many pairs, one after another. Each word about a pair's messages contains the base
// that its writer has at the time (reserve.h), and readers ignore words of another base. So no pair
// takes a word for its own that was written for another. The words without a base (`waiting`, the
// bell) are hints: a stale one costs a wake-up, or a delay of 50 ms.
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

/// Messages to one peer that may be unreleased. With fewer, pipelines with more pieces in flight
/// would stall. More cost memory (kEntries * inline_bytes a pair) and cache.
inline constexpr uint64_t kEntries = 32;
static_assert((kEntries & (kEntries - 1)) == 0, "a slot is found by a mask");
/// In the units of a part a rank counts messages from its base there, a multiple of kBaseStep
/// (reserve.h). In the units of the whole it counts from 0. kBaseStep messages can go through a
/// link: two years at a million a second. Bases recur after kBases - 1 blocks.
inline constexpr uint64_t kBaseStep = uint64_t{1} << 46;
inline constexpr uint64_t kBases = uint64_t{1} << 18;

/// The receiver reports its releases of copied messages at least once in so many messages.
inline constexpr uint64_t kLazyCredits = 8;
static_assert(kEntries - (kLazyCredits - 1) >= kLeastCredits);
static_assert(uint64_t{1} << HandedBuffers::kCount <= kBaseStep, "a base and a set are one word");

/// Cache lines are fetched in pairs, so words with different writers are two lines apart.
inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kApartBytes = 128;

/// What peers need to map this rank's memory; Transport::address() is this struct. All ranks run on
/// one host, so they have one byte order. Widths are fixed and there is no padding, so all builds
/// have one layout.
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
  uint64_t nonce_at = 0;  // its address in the rank's process
  uint64_t inline_bytes = 0;
  uint64_t handed_bytes = 0;
  int32_t handed_fd = -1;
  int32_t unused = 0;
  char boot_id[40] = {};
};
static_assert(sizeof(Address) == 128 && sizeof(Address) <= kMaxAddressBytes);

/// Where a rank's units for a part lie in its control memory. The part's address is this struct.
struct PartAddress {
  uint64_t base = 0;
  uint32_t first = 0;  // the first unit
  int32_t rank = 0;    // in the part
};
static_assert(sizeof(PartAddress) == 16 && sizeof(PartAddress) <= kMaxPartAddressBytes);

struct ControlPage {
  uint64_t magic;
  uint64_t nonce;
};

/// Written by this rank for one peer.
struct PeerLines {
  /// The number of the last message of the peer that this rank has released, plus this rank's base.
  /// It gives the peer credit.
  alignas(kApartBytes) std::atomic<uint64_t> released;
  /// In the first unit of a part: its base until it ends, then 0.
  std::atomic<uint64_t> open;
  /// In the first unit of the whole or of a part: non-zero while this rank sleeps, or is about to
  /// sleep, for all of its peers there.
  alignas(kApartBytes) std::atomic<uint32_t> waiting;
  /// In the same unit, stored before `waiting`: the bell that peers ring.
  std::atomic<int32_t> bell_fd;
  std::atomic<uint64_t> bell_inode;
  /// In a part: this rank's base once it has connected to the peer. The peer may learn of it in no
  /// other way.
  std::atomic<uint64_t> connected;
  /// This rank's base + 1 if it can read the memory of the peer's process.
  std::atomic<uint64_t> reads;
  /// This rank's base + 1 while the peer may use what this rank has lent to it. Endpoint::revoke()
  /// clears it.
  std::atomic<uint64_t> lends;
  /// The buffers that this rank has given back to the peer (HandedBuffers::returned), plus this
  /// rank's base.
  std::atomic<uint64_t> returned;
};
static_assert(sizeof(PeerLines) == 2 * kApartBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// Flags of Entry::offset. No offset, and no address of a process, has one of these bits.
inline constexpr uint64_t kLent = uint64_t{1} << 63;
inline constexpr uint64_t kHanded = uint64_t{1} << 62;

/// One message. A payload of up to inline_bytes may lie beside it. Up to 16 bytes share the stamp's
/// cache line, and arrive with it. A longer payload begins in the next line. So the line that the
/// receiver polls is written only at the end, and at once.
struct Entry {
  /// The number of the message, plus the sender's base. It is written last; the receiver polls it.
  std::atomic<uint64_t> stamp;
  uint64_t bytes;
  /// Where the payload lies. With kHanded, this is the number of a buffer. Otherwise a payload of
  /// at most inline_bytes lies beside this entry. A longer one lies in the sender's arena, or with
  /// kLent in its process; this is then its offset or address.
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

/// The spare units suffice for so many parts that all ranks of a machine belong to. Each group has
/// two parts; parts of fewer ranks take fewer units. A rank's file takes memory only where it is
/// used, but each peer maps all of it. Where many ranks have long inline messages,
/// TransportOptions::part_bytes bounds it.
inline constexpr uint64_t kSpareParts = 2 * 4096 + 2;

/// Buffers take at most 1 / kHandedShare of TransportOptions::part_bytes, but each unit of the
/// whole has buffers. They take memory where a pair uses them, and address space in all peers.
inline constexpr uint64_t kHandedShare = 4;

/// Offsets in the control memory, and in the memory of the buffers.
class Layout {
 public:
  /// The layout for `size` ranks. Of these, `sharers` can share memory, so that they may be members
  /// of parts.
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
  /// Unit r is for rank r of the whole.
  uint32_t whole_units() const { return whole_units_; }
  uint32_t spare_units() const { return spare_units_; }
  uint64_t lines(uint32_t unit) const { return kPageBytes + unit_bytes() * unit; }
  uint64_t ring(uint32_t unit) const { return lines(unit) + sizeof(PeerLines); }
  /// The bytes of the buffers of one unit.
  uint64_t handed_unit_bytes() const { return handed_unit_bytes_; }
  uint64_t handed(uint32_t unit) const { return handed_unit_bytes_ * unit; }
  /// Only the first units have buffers.
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
