// The units of a rank's control memory that are for parts (layout.h): given out in blocks, one for
// each part, and given out again.
//
// Nothing that was written in one life of a block is taken for a word of another, by three rules:
//
// 1. A block is not given out again while a peer may still look at it, or write to its buffers: a
//    rank that ends a part waits for nobody, and what it sent last has to arrive. So a block that
//    ends names its **witnesses**, the blocks of all peers that may be linked to it, and is free
//    when each of these has ended, too, or the process that had it. Blocks that wait for one
//    another are freed both, since each says first that it has ended.
// 2. A block that is given out reads as zeros.
// 3. Every block given out has a **base** of its own, which is in each word that its owner writes
//    for a peer. A peer was told the base with the place of the block, and a word of another base
//    is nothing to it. Two ranks may have the same base; no word is read by the base of another
//    than its writer.
//
// Peers may still read messages in the arena, whose owner asks for them (Reader): until they have
// ended, too, or released all of these.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "transport/shm/layout.h"

namespace ringcoll::shm {

struct Block {
  uint32_t first = 0;  // unit
  uint32_t units = 0;
  uint64_t base = 0;
};

/// Where a peer's block says that it has not ended, and what stands there until then.
struct Witness {
  const std::atomic<uint64_t>* open = nullptr;
  uint64_t base = 0;
  const std::atomic<bool>* dead = nullptr;  // its process has ended, without saying so there

  /// If so, it reads nothing any more.
  bool has_ended() const;
};

/// A peer that has not released all messages of a part which lie in the arena, when that has ended.
struct Reader {
  Witness witness;
  const std::atomic<uint64_t>* released = nullptr;  // as PeerLines'
  uint64_t base = 0;  // of the peer's block, from which it counts what it has released
  uint64_t last = 0;  // the number of the last of them

  bool may_read() const;
};

/// Any thread.
class Reserve {
 public:
  /// Of the units behind the whole's, in memory that outlives this: `handed` has their buffers.
  Reserve(SharedMemory& control, SharedMemory& handed, const Layout& layout);

  /// Throws Error(kTransport) with the remedy if so many units in a row are not free.
  Block take(uint32_t units);
  /// The part has ended. The witnesses' memory outlives this.
  void give_back(const Block& block, std::vector<Witness> witnesses);

 private:
  struct Ended {
    Block block;
    std::vector<Witness> witnesses;
  };
  void free_ended();
  void free(const Block& block);
  std::atomic<uint64_t>& open(const Block& block);

  SharedMemory& control_;
  SharedMemory& handed_;
  const Layout layout_;
  std::mutex mutex_;
  std::map<uint32_t, uint32_t> free_;  // the first unit and the number; none touches another
  std::vector<Ended> ended_;
  uint64_t bases_ = 0;  // given out
  uint32_t used_ = 0;   // blocks of parts that have not ended
};

}  // namespace ringcoll::shm
