// One watch of memory (shm/unmap_watch.h) for all who keep registrations by address, the whole and
// its parts: each hears of all changes, and there is one thread and one descriptor. The kernel
// would give memory to one watch alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "shm/unmap_watch.h"

namespace ringcoll::rdma {

/// Any thread.
class CommonWatch {
 public:
  using Changed = std::function<void(uintptr_t first, uintptr_t end)>;

  /// Used by one thread at a time, while others use theirs. The watch outlives it.
  class Listener {
   public:
    explicit Listener(CommonWatch& common);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    /// As UnmapWatch's. Throws Error(kTransport) where it is not offered.
    bool watch(const void* data, size_t bytes);
    /// As UnmapWatch's: what has changed since this one asked last, whoever watches it.
    void take_changes(const Changed& changed);

   private:
    friend class CommonWatch;
    struct Range {
      uintptr_t first, end;
    };
    // More than these are told as one that covers everything. No vector: it would allocate under
    // the lock.
    static constexpr size_t kMostChanges = 256;

    void note(Range change);

    CommonWatch& common_;
    std::array<Range, kMostChanges> changes_;  // guarded by CommonWatch::mutex_, and so is count_
    size_t count_ = 0;
  };

 private:
  std::mutex mutex_;
  std::unique_ptr<UnmapWatch> watch_;  // from the first range on
  std::vector<Listener*> listeners_;
};

}  // namespace ringcoll::rdma
