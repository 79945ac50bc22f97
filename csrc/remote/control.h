// Memory in which an agent says where its regions lie. Other processes of its host map it. They
// read and write regions without the owner's threads, tell there which regions they write, and
// leave notices there.
//
// Closing a region must not let a peer write to memory that has another use by then, nor take such
// memory for the region's. Reading: a peer looks at the entry's secret before and after it copies;
// if it has changed, what was copied is void. Writing: a peer first announces the region in a slot
// of its own, then looks at the secret, and clears the slot when it has written. The owner first
// clears the secret and then waits until no slot has the region (Dekker's algorithm: both sides
// need a full fence between their store and their load).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "remote/handle.h"
#include "shm/shared_memory.h"

namespace ringcoll::remote {

inline constexpr uint32_t kMostRegions = 1 << 16;
inline constexpr uint32_t kMostWriters = 1 << 10;
/// Notices that are not taken leave slots for those who write.
inline constexpr uint32_t kMostNotices = kMostWriters / 2;

/// Where a region lies. All words but the secret change only while the secret is 0.
struct RegionEntry {
  std::atomic<uint64_t> secret;  // 0: no region, or one that is being closed
  std::atomic<uint64_t> address;
  std::atomic<uint64_t> bytes;
  std::atomic<int32_t> segment_fd;  // the shared memory (remote/pool.h) that it lies in; -1: none
  std::atomic<uint32_t> writable;
  std::atomic<uint64_t> segment_inode;
  std::atomic<uint64_t> segment_bytes;
  std::atomic<uint64_t> segment_offset;  // of the region's first byte
};
static_assert(sizeof(RegionEntry) == 56 && std::atomic<uint64_t>::is_always_lock_free);

/// A thread of a peer that writes. When it has written, it leaves the slot free, or a notice in it.
struct WriterSlot {
  std::atomic<int32_t> pid;      // of its process; 0: the slot is free
  std::atomic<uint32_t> region;  // that it writes now, counted from 1; 0: none
  std::atomic<uint64_t> notice;  // a number that grows with each notice; 0: there is none
  std::atomic<uint64_t> secret;  // of the region that the notice is for
  std::atomic<uint64_t> value;   // of the notice
};

struct ControlMemory {
  std::atomic<uint64_t> agent;               // the id of the agent
  std::atomic<uint64_t> self;                // the address of this in the owner, for PeerMemory
  std::atomic<uint64_t> proofs[kMostDoors];  // proof_of() each door; 0: none
  std::atomic<uint32_t> slots_used;          // no later slot has ever been used
  std::atomic<uint64_t> notices;             // the number of the newest notice
  std::atomic<uint32_t> bell;                // changes with each notice
  std::atomic<uint32_t> sleepers;            // threads of the owner that wait for the bell
  WriterSlot writers[kMostWriters];
  RegionEntry regions[kMostRegions];  // pages are allocated when they are first used
};

/// A region's entry, read by a peer while the region was open.
struct Located {
  uint64_t address = 0;
  uint64_t bytes = 0;
  int segment_fd = -1;
  bool writable = false;
  uint64_t segment_inode = 0;
  uint64_t segment_bytes = 0;
  uint64_t segment_offset = 0;
};

/// The entry's content. Nothing if the region is closed or has another secret.
std::optional<Located> locate(const RegionEntry& entry, uint64_t secret);
/// Whether the region is open still. All that this thread, or the kernel for it, has read before
/// was the region's then.
bool is_open_still(const RegionEntry& entry, uint64_t secret);

/// While it lives, the owner does not take back the region's memory. Any thread of the peer.
class WriteScope {
 public:
  /// Takes a free slot; holds none if all are taken.
  WriteScope(ControlMemory& control, uint32_t region);
  ~WriteScope();
  WriteScope(const WriteScope&) = delete;
  WriteScope& operator=(const WriteScope&) = delete;
  explicit operator bool() const { return slot_ != nullptr; }
  /// Leaves a notice for the region with this secret, and wakes the owner. The last call. False: no
  /// notice can be left here, for too many are not taken yet.
  bool leave_notice(uint64_t secret, uint64_t value);

 private:
  ControlMemory& control_;
  WriterSlot* slot_ = nullptr;
};

// For the owner, one thread at a time.

/// After the secret was cleared: whether a peer may be writing to the region. Frees the slots of
/// processes that have ended, also where a process had not named a region yet.
bool has_writers(ControlMemory& control, uint32_t region);
/// Takes the oldest notice that was left for the region with this secret. Those of one thread come
/// in the order in which it has left them.
std::optional<uint64_t> take_left_notice(ControlMemory& control, uint64_t secret);

// For the owner, any thread.

/// Wakes those who wait.
void ring(ControlMemory& control);
/// Waits for ring().
class Listening {
 public:
  explicit Listening(ControlMemory& control);
  /// Returns when ring() was called since the last wait(), or the construction, or after `limit`.
  void wait(Duration limit);

 private:
  ControlMemory& control_;
  uint32_t seen_;
};

}  // namespace ringcoll::remote
