// Gives out the spare units of a rank's control memory (layout.h) in blocks, one block for each
// part. Blocks are used again.
//
// Three rules keep a peer from taking a word of one life of a block for a word of another:
//
// 1. A block is not given out again while a peer may still read it, or write to its buffers. A
//    rank that ends a part waits for nobody, but what it sent last has to arrive. So a block that
//    ends names its **witnesses**: the blocks of all peers that may be linked to it. It is free
//    when each witness has ended, or the process that had it. Two blocks that wait for each other
//    are both freed, since each first says that it has ended.
// 2. A block that is given out reads as zeros.
// 3. Every block given out has a **base** of its own. Each word that the owner writes for a peer
//    contains it. A peer learns the base together with the place of the block, and ignores words of
//    another base. Two ranks may have the same base, since a word is only compared with its
//    writer's base.
//
// Messages of an ended part may still be read in the arena. The arena's owner checks that with
// Reader: a peer may read until it has ended, too, or has released all these messages.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "transport/shm/layout.h"

namespace ringcoll::shm {

struct Block {
  uint32_t first = 0;  // the first unit
  uint32_t units = 0;
  uint64_t base = 0;
};

/// The word by which a peer's block says that it has not ended, and its value until then.
struct Witness {
  const std::atomic<uint64_t>* open = nullptr;
  uint64_t base = 0;
  const std::atomic<bool>* dead = nullptr;  // the process has ended without saying so

  /// If true, the peer reads and writes nothing any more.
  bool has_ended() const;
};

/// A peer that had not released all kept messages of a part when the part ended.
struct Reader {
  Witness witness;
  const std::atomic<uint64_t>* released = nullptr;  // PeerLines::released of the peer
  uint64_t base = 0;  // of the peer's block; `released` counts from it
  uint64_t last = 0;  // the number of the last of these messages

  bool may_read() const;
};

/// All functions may be called by any thread.
class Reserve {
 public:
  /// Gives out the units behind those of the whole. Both memories outlive this object; `handed` has
  /// the units' buffers.
  Reserve(SharedMemory& control, SharedMemory& handed, const Layout& layout);

  /// Throws Error(kTransport) with the remedy if no `units` free units lie in a row.
  Block take(uint32_t units);
  /// Reports that the part has ended. The witnesses' memory outlives this object.
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
  std::map<uint32_t, uint32_t> free_;  // gaps: first unit and number of units; none is adjacent
  std::vector<Ended> ended_;
  uint64_t bases_ = 0;  // how many were given out
  uint32_t used_ = 0;   // blocks of parts that have not ended
};

}  // namespace ringcoll::shm
