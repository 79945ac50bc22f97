// One watch of memory (shm/unmap_watch.h) for all that keep registrations by address: the whole
// transport and its parts. Each hears of all changes, and there is one thread and one descriptor.
// The kernel would give memory to one watch alone.
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

  /// One thread at a time uses it, while others use theirs. The CommonWatch outlives it.
  class Listener {
   public:
    explicit Listener(CommonWatch& common);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    /// As UnmapWatch::watch(). Throws Error(kTransport) where the kernel does not offer it.
    bool watch(const void* data, size_t bytes);
    /// As UnmapWatch::take_changes(): reports what has changed since this listener asked last,
    /// whoever watches it.
    void take_changes(const Changed& changed);

   private:
    friend class CommonWatch;
    struct Range {
      uintptr_t first, end;
    };
    // If more ranges change, one that covers everything is reported. It is no vector, which would
    // allocate under the lock.
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
