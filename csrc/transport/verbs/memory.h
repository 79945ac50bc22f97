// Registered memory of one transport: inboxes and outboxes, and buffers for payload that has no
// place of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shm/shared_memory.h"
#include "verbs/handles.h"

namespace ringcoll::rdma {

/// Anonymous memory that the device may use, and the peer may write if `access` says so.
class Registered {
 public:
  /// `bytes` is rounded up to pages. Throws Error(kTransport).
  Registered(const verbs::ProtectionDomain& domain, size_t bytes, verbs::Access access);
  ~Registered();
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const verbs::MemoryRegion& region() const { return region_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  verbs::MemoryRegion region_;
};

/// Buffers in which payload lands. Free buffers are kept, so that a job registers no more after its
/// first calls. One thread at a time.
class Landing {
 public:
  explicit Landing(const verbs::ProtectionDomain& domain) : domain_(domain) {}

  /// A buffer of at least `bytes`, this rank's until it is given back. Throws Error(kTransport).
  std::unique_ptr<Registered> take(size_t bytes);
  void give_back(std::unique_ptr<Registered> buffer) { free_.push_back(std::move(buffer)); }

 private:
  const verbs::ProtectionDomain& domain_;
  std::vector<std::unique_ptr<Registered>> free_;
};

}  // namespace ringcoll::rdma
