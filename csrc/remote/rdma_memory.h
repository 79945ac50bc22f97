// Memory of this process that its device reads and writes when it copies. Registering costs about
// as much as copying once, so memory stays registered while it is likely to come again. Where freed
// memory cannot be watched (shm/unmap_watch.h), it is registered only while copies use it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "remote/pool.h"
#include "transport/verbs/common_watch.h"
#include "transport/verbs/open_port.h"
#include "verbs/handles.h"

namespace ringcoll::remote {

/// Long copies are registered in stretches. They are shorter than what a queue pair has
/// outstanding, so that the device copies one while the next is being registered.
inline constexpr uint64_t kStretchBytes = 8 << 20;

/// Any thread.
class RdmaMemory final : private Pool::Listener {
 public:
  /// Keeps the memory registered while it lives.
  using Lease = std::shared_ptr<const verbs::MemoryRegion>;

  /// `most_bytes`: RINGCOLL_REGISTER_BYTES.
  explicit RdmaMemory(uint64_t most_bytes);
  ~RdmaMemory() override;
  RdmaMemory(const RdmaMemory&) = delete;
  RdmaMemory& operator=(const RdmaMemory&) = delete;

  /// The registration of exactly this memory; null if there is none. `written`: the device may
  /// write.
  Lease find(const rdma::OpenPort& port, const std::byte* data, uint64_t bytes, bool written);
  /// Registers it if need be, which takes long. Throws Error(kTransport).
  Lease make(const std::shared_ptr<rdma::OpenPort>& port, const std::byte* data, uint64_t bytes,
             bool written);

 private:
  struct Registered;
  struct Entry {
    std::shared_ptr<Registered> kept;  // null: only while leases live
    std::weak_ptr<Registered> registered;
    uint64_t used = 0;  // number of the last use
  };
  /// Of a port, by address and length.
  using Key = std::tuple<const rdma::OpenPort*, uintptr_t, uint64_t>;

  void released(const std::byte* memory, size_t bytes) override;
  void forget(uintptr_t first, uintptr_t end);
  void take_changes();
  Lease lease_of(const Key& key, bool written);
  void make_room(uint64_t bytes);
  bool watch(const std::byte* data, uint64_t bytes);

  const uint64_t most_bytes_;
  const std::shared_ptr<std::atomic<uint64_t>> registered_bytes_;
  std::mutex mutex_;
  uint64_t uses_ = 0;
  std::map<Key, Entry> entries_;
  rdma::CommonWatch common_;
  rdma::CommonWatch::Listener watch_;
  bool can_watch_ = true;
};

}  // namespace ringcoll::remote
