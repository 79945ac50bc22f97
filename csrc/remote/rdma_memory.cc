#include "remote/rdma_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace ringcoll::remote {

struct RdmaMemory::Registered {
  std::shared_ptr<rdma::OpenPort> port;  // outlives the memory's registration
  std::shared_ptr<std::atomic<uint64_t>> counted;
  bool written;
  verbs::MemoryRegion memory;

  Registered(std::shared_ptr<rdma::OpenPort> of, std::shared_ptr<std::atomic<uint64_t>> counter,
             const std::byte* data, uint64_t bytes, bool is_written)
      : port(std::move(of)),
        counted(std::move(counter)),
        written(is_written),
        memory(port->domain, const_cast<std::byte*>(data), bytes,
               is_written ? verbs::Access::kLocalWrite : verbs::Access::kLocalRead) {
    *counted += bytes;
  }
  ~Registered() { *counted -= memory.bytes(); }
};

RdmaMemory::RdmaMemory(uint64_t most_bytes)
    : most_bytes_(most_bytes),
      registered_bytes_(std::make_shared<std::atomic<uint64_t>>(0)),
      watch_(common_) {
  Pool::of_process().add(*this);
}

RdmaMemory::~RdmaMemory() { Pool::of_process().remove(*this); }

// With the lock, and so the functions below up to find().
void RdmaMemory::forget(uintptr_t first, uintptr_t end) {
  std::erase_if(entries_, [&](const auto& entry) {
    auto [port, at, bytes] = entry.first;
    return at < end && first < at + bytes;
  });
}

void RdmaMemory::take_changes() {
  if (entries_.empty() || !can_watch_) return;
  watch_.take_changes([this](uintptr_t first, uintptr_t end) { forget(first, end); });
}

RdmaMemory::Lease RdmaMemory::lease_of(const Key& key, bool written) {
  auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  auto registered = found->second.registered.lock();
  if (!registered || (written && !registered->written)) return nullptr;
  found->second.used = ++uses_;
  return {registered, &registered->memory};
}

void RdmaMemory::make_room(uint64_t bytes) {
  std::erase_if(entries_, [](const auto& entry) { return entry.second.registered.expired(); });
  while (*registered_bytes_ + bytes > most_bytes_) {
    auto idle = entries_.end();  // the one that was used the longest ago, and is not now
    for (auto it = entries_.begin(); it != entries_.end(); it++)
      if (it->second.kept.use_count() == 1 &&
          (idle == entries_.end() || it->second.used < idle->second.used))
        idle = it;
    check(idle != entries_.end(), Code::kTransport,
          "{} bytes more would be registered than the {} that RINGCOLL_REGISTER_BYTES allows",
          *registered_bytes_ + bytes - most_bytes_, most_bytes_);
    entries_.erase(idle);
  }
}

bool RdmaMemory::watch(const std::byte* data, uint64_t bytes) {
  if (!can_watch_) return false;
  try {
    return watch_.watch(data, bytes);
  } catch (const Error& error) {
    log_debug("memory is registered for RDMA for each copy anew: {}", error.what());
    return can_watch_ = false;
  }
}

RdmaMemory::Lease RdmaMemory::find(const rdma::OpenPort& port, const std::byte* data,
                                   uint64_t bytes, bool written) {
  std::lock_guard lock(mutex_);
  take_changes();
  return lease_of({&port, reinterpret_cast<uintptr_t>(data), bytes}, written);
}

// Memory is watched before it is registered, so that no change is missed.
RdmaMemory::Lease RdmaMemory::make(const std::shared_ptr<rdma::OpenPort>& port,
                                   const std::byte* data, uint64_t bytes, bool written) {
  bool stays = Pool::of_process().place_of(data, bytes).has_value();
  Key key{port.get(), reinterpret_cast<uintptr_t>(data), bytes};
  {
    std::lock_guard lock(mutex_);
    take_changes();
    if (auto lease = lease_of(key, written)) return lease;
    make_room(bytes);
    stays = stays || watch(data, bytes);
  }
  auto made = std::make_shared<Registered>(port, registered_bytes_, data, bytes, written);
  Lease lease{made, &made->memory};
  std::lock_guard lock(mutex_);
  entries_[key] = {stays ? made : nullptr, made, ++uses_};
  return lease;
}

void RdmaMemory::released(const std::byte* memory, size_t bytes) {
  auto first = reinterpret_cast<uintptr_t>(memory);
  std::lock_guard lock(mutex_);
  forget(first, first + bytes);
}

}  // namespace ringcoll::remote
