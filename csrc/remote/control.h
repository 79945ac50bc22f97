// Memory in which an agent says where its regions lie. Other processes of its host map it. They
// read and write regions without the owner's threads, and tell there which regions they write.
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

#include "remote/handle.h"
#include "shm/shared_memory.h"

namespace ringcoll::remote {

inline constexpr uint32_t kMostRegions = 1 << 16;
inline constexpr uint32_t kMostWriters = 1 << 10;

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

/// A thread of a peer that writes: its process, and which region, counted from 1; 0: none.
struct WriterSlot {
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> region;
};

struct ControlMemory {
  std::atomic<uint64_t> agent;               // the id of the agent
  std::atomic<uint64_t> self;                // the address of this in the owner, for PeerMemory
  std::atomic<uint64_t> proofs[kMostDoors];  // proof_of() each door; 0: none
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

 private:
  WriterSlot* slot_ = nullptr;
};

/// For the owner, after it has cleared the secret: whether a peer may be writing to the region.
/// Frees the slots of processes that have ended.
bool has_writers(ControlMemory& control, uint32_t region);

}  // namespace ringcoll::remote
