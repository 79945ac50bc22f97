// Memory that other agents read or write while it lives.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "remote/agent.h"

namespace ringcoll::serving {

/// A region of memory that the caller has. Closed when it is destroyed; then no peer uses the
/// memory any more.
class OpenRegion {
 public:
  OpenRegion(remote::Agent& agent, void* data, size_t bytes, bool writable);
  ~OpenRegion();
  OpenRegion(const OpenRegion&) = delete;
  OpenRegion& operator=(const OpenRegion&) = delete;

  remote::Region& operator*() const { return *region_; }
  std::string handle() const { return agent_.handle_of(*region_); }
  /// False: a peer that is stopped in the middle of a write has the memory still.
  bool close();

 private:
  remote::Agent& agent_;
  std::shared_ptr<remote::Region> region_;
};

/// Memory of the pool, and its region. If a stopped peer keeps the memory, it is never released.
class SharedBuffer {
 public:
  SharedBuffer(remote::Agent& agent, size_t bytes, bool writable);
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  std::string handle() const { return region_->handle(); }
  remote::Region& region() const { return **region_; }
  /// It has no further use (Buffers::discard()).
  void discard() { discarded_ = true; }
  bool is_discarded() const { return discarded_; }

 private:
  const size_t bytes_;
  std::byte* data_;
  bool discarded_ = false;
  std::unique_ptr<OpenRegion> region_;
};

}  // namespace ringcoll::serving
