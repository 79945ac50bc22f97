// An agent of another process on this host, whose regions this process reads and writes without
// the owner's threads: memory of the pool is mapped, other memory is copied by the kernel
// (shm/peer_memory.h) where that is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fd.h"
#include "remote/control.h"
#include "remote/handle.h"
#include "shm/peer_memory.h"
#include "shm/shared_memory.h"

namespace ringcoll::remote {

/// Any thread.
class HostPeer {
 public:
  /// For an agent of this host (AgentFacts::host). Null if its memory cannot be mapped here:
  /// another user, another PID namespace, or the process has ended.
  /// `proofs`: proof_of() the doors whose key this process knows, of which one must be the agent's.
  static std::shared_ptr<HostPeer> open(const AgentFacts& facts,
                                        const std::vector<uint64_t>& proofs);

  /// Copies bytes of a region to or from `local`. False: this region cannot be reached this way,
  /// and nothing was copied; a link must do it. Throws Error: kGone, kInvalidArgument (not in the
  /// region), kRefused (not writable), kPeerLost (the owner's process has ended).
  bool read(uint32_t region, uint64_t secret, uint64_t offset, void* local, uint64_t bytes);
  /// `notice`: is left after the bytes, and then reset; what stays there goes over a link.
  bool write(uint32_t region, uint64_t secret, uint64_t offset, const void* local, uint64_t bytes,
             std::optional<uint64_t>* notice);
  /// Whether read() and write() reach all of its regions.
  bool can_copy() const { return can_copy_; }
  /// Whether the process has ended.
  bool has_ended() const;
  /// Whether its regions are closed for ever: the agent is closed, or the process has ended.
  bool is_over() const;

 private:
  HostPeer() = default;
  /// Throws kGone, or kPeerLost if the process has ended.
  [[noreturn]] void throw_missing() const;
  /// For memory that cannot be read because the process has none.
  [[noreturn]] void throw_ended(uint32_t region, uint64_t secret) const;
  bool put(const Located& located, uint32_t region, uint64_t secret, uint64_t offset,
           const void* local, uint64_t bytes);
  Located find(uint32_t region, uint64_t secret, uint64_t offset, uint64_t bytes) const;
  /// The segment in which the region lies, mapped; null if it cannot be.
  std::shared_ptr<SharedMemory> segment_of(const Located& located);
  ControlMemory& control() const { return *reinterpret_cast<ControlMemory*>(control_.data()); }

  uint64_t agent_ = 0;
  int pid_ = 0;
  Fd process_;  // pidfd; empty: the kernel has none, then has_ended() asks another way
  SharedMemory control_;
  PeerMemory memory_;
  bool can_copy_ = false;  // memory_ may be read
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<SharedMemory>> segments_;  // by inode
};

}  // namespace ringcoll::remote
