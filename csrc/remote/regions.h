// The regions of an agent, as their owner sees them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "remote/control.h"
#include "remote/handle.h"
#include "shm/shared_memory.h"

namespace ringcoll::remote {

/// The control memory of an agent.
struct OwnControl {
  SharedMemory memory = SharedMemory::create(sizeof(ControlMemory));
  std::mutex mutex;  // of the slots of writers
  ControlMemory& operator*() { return *reinterpret_cast<ControlMemory*>(memory.data()); }
};

/// Memory that others may read, and write if it is writable. Any thread.
class Region {
 public:
  uint32_t index() const { return index_; }
  uint64_t secret() const { return secret_; }
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  bool writable() const { return writable_; }

  /// Adds a notice, which came after the bytes that it is about.
  void give_notice(uint64_t value);
  /// Takes the oldest notice. Throws Error(kTimeout) at the deadline, or Error(kGone) once the
  /// region is closed and no notice is left.
  uint64_t take_notice(Deadline deadline);
  /// The same without waiting: nothing if none is there.
  std::optional<uint64_t> try_take_notice();
  /// Whether Regions::refuse() was called.
  bool is_closed();

 private:
  friend class Regions;
  friend class RegionUse;
  void gather();

  std::shared_ptr<OwnControl> control_;
  uint32_t index_ = 0;
  uint64_t secret_ = 0;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  bool writable_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int uses_ = 0;  // by this process, for peers that are reached over a network
  std::deque<uint64_t> notices_;
};

/// While it lives, the region's memory is not taken back. May be empty.
class RegionUse {
 public:
  RegionUse() = default;
  RegionUse(RegionUse&&) = default;
  RegionUse& operator=(RegionUse&&) = default;
  ~RegionUse() { reset(); }
  void reset();
  Region* get() const { return region_.get(); }
  Region* operator->() const { return region_.get(); }

 private:
  friend class Regions;
  explicit RegionUse(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  std::shared_ptr<Region> region_;
};

/// Any thread.
class Regions {
 public:
  /// `agent`: its id, which peers find in the control memory.
  explicit Regions(uint64_t agent);
  /// Closes the regions that are open.
  ~Regions();

  /// Opens a region. Its memory stays the caller's, who keeps it until close() has returned. Throws
  /// Error(kInvalidArgument), or Error(kTransport) if there are too many.
  std::shared_ptr<Region> open(void* data, uint64_t bytes, bool writable);
  /// Nobody begins to use the region after this.
  void refuse(const std::shared_ptr<Region>& region);
  /// No peer reads or writes the region's memory once this has returned. Throws Error(kTimeout) at
  /// the deadline, if a peer that is stopped in the middle of a write keeps it; then call it again.
  void close(const std::shared_ptr<Region>& region, Deadline deadline);
  /// The region, for a peer that names it with its secret. Throws Error(kGone) if there is none
  /// (any more), Error(kInvalidArgument) if [offset, offset + bytes) is not in it, and
  /// Error(kRefused) if `writes` and it is not writable.
  RegionUse use(uint32_t index, uint64_t secret, uint64_t offset, uint64_t bytes, bool writes);

  /// Lets processes of the host in that know the key of a door.
  void admit(uint64_t proof);

  /// Waits for notices of any region, and for ring().
  Listening listen() { return Listening(control()); }
  void ring() { remote::ring(control()); }

  int control_fd() const { return control_->memory.fd(); }
  uint64_t control_inode() const { return control_->memory.inode(); }
  size_t count();

 private:
  ControlMemory& control() { return **control_; }

  const std::shared_ptr<OwnControl> control_ = std::make_shared<OwnControl>();
  std::mutex mutex_;
  std::vector<std::shared_ptr<Region>> open_;  // by index; null: free
  std::vector<uint32_t> free_;
};

/// Throws Error(kInvalidArgument) unless [offset, offset + bytes) is in a region of `region_bytes`.
void check_range(uint64_t offset, uint64_t bytes, uint64_t region_bytes);
/// Throws Error(kRefused) unless `may`: a peer may do with the region what it wants.
void check_writable(bool may);
/// Throws the Error of a region that is not there any more.
[[noreturn]] void throw_gone();

}  // namespace ringcoll::remote
