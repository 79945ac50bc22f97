// What lies where in the control memory of a rank, and what a rank tells its peers to find it.
//
// Every rank writes only to memory of its own; its peers map that read-only. So a rank that goes
// mad can send nonsense (which is range-checked) but cannot damage what its peers work with.
//
//   page 0              ControlPage: proves that the right memory was mapped
//   then, per peer      PeerLines: what this rank tells that peer as a receiver and as a sleeper
//   then, per peer      a ring of kEntries entries: the messages to that peer
//
// All offsets are for `size` peers, but pages are only used (and paid for) once a pair talks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/futex.h"
#include "transport/transport.h"

namespace ringcoll::shm {

inline constexpr uint32_t kVersion = 2;
inline constexpr uint64_t kMagic = 0x316d68736c6c6f63;  // "collshm1"

/// Messages to one peer that may be unreleased. Fewer stall pipelines that have more pieces in
/// flight; more cost memory (kEntries * inline_bytes a pair) and cache.
inline constexpr uint64_t kEntries = 32;
static_assert((kEntries & (kEntries - 1)) == 0, "a slot is found by a mask");
/// Small messages whose release the sender may not have been told yet.
inline constexpr uint64_t kLazyCredits = 8;
static_assert(kLazyCredits < kEntries, "or the sender would wait for a credit for ever");

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
  uint64_t inline_bytes = 0;
  char boot_id[40] = {};
};
static_assert(sizeof(Address) == 104 && sizeof(Address) <= kMaxAddressBytes);

struct ControlPage {
  uint64_t magic;
  uint64_t nonce;
};

/// Written by this rank for one peer.
struct PeerLines {
  /// Number of the last message of the peer that this rank has released: the peer's credit.
  alignas(kApartBytes) std::atomic<uint64_t> released;
  /// Non-zero while this rank sleeps, or is about to, on the peer's `event`.
  alignas(kApartBytes) std::atomic<uint32_t> waiting;
  /// Counts up when this rank has sent or released and found the peer's `waiting` set. The peer
  /// sleeps on it.
  FutexWord event;
  /// One more than the number of the CPU on which this rank last slept; 0: not yet.
  std::atomic<int32_t> cpu_and_one;
};
static_assert(sizeof(PeerLines) == 2 * kApartBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// One message. A payload of up to inline_bytes follows in the same cache line; so 16 bytes arrive
/// with the line that says that they are there.
struct Entry {
  /// Number of the message, written last; the receiver polls it.
  std::atomic<uint64_t> stamp;
  uint64_t bytes;
  /// Where in the sender's arena a payload of more than inline_bytes lies.
  uint64_t offset;
  Envelope envelope;

  std::byte* payload() { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* payload() const { return reinterpret_cast<const std::byte*>(this + 1); }
};
static_assert(sizeof(Entry) == 48);

/// Offsets in control memory.
class Layout {
 public:
  Layout(Rank size, uint64_t inline_bytes)
      : stride_(up(sizeof(Entry) + inline_bytes, kLineBytes)),
        rings_(up(kPageBytes + sizeof(PeerLines) * static_cast<uint64_t>(size), kPageBytes)),
        bytes_(rings_ + stride_ * kEntries * static_cast<uint64_t>(size)) {}

  uint64_t bytes() const { return bytes_; }
  uint64_t stride() const { return stride_; }
  uint64_t lines(Rank peer) const {
    return kPageBytes + sizeof(PeerLines) * static_cast<uint64_t>(peer);
  }
  uint64_t ring(Rank peer) const {
    return rings_ + stride_ * kEntries * static_cast<uint64_t>(peer);
  }

 private:
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr uint64_t up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }

  uint64_t stride_;
  uint64_t rings_;
  uint64_t bytes_;
};

}  // namespace ringcoll::shm
