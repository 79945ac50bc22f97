// Anonymous shared memory (memfd): nothing in /dev/shm or any other file system, so nothing is left
// behind when a process is killed, and a full /dev/shm does not matter. Peers of the same host map
// it through /proc/<pid>/fd/<fd>, which proves on the way that they may (same user, same PID
// namespace).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/fd.h"

namespace ringcoll {

/// Whether all of [at, at + bytes) is in `memory`.
inline bool lies_in(std::span<const std::byte> memory, const void* at, size_t bytes) {
  auto* first = static_cast<const std::byte*>(at);
  return first >= memory.data() && bytes <= memory.size() &&
         static_cast<size_t>(first - memory.data()) <= memory.size() - bytes;
}

/// A mapping, its size and, in the process that made it, its descriptor. Move-only; the destructor
/// unmaps and closes.
class SharedMemory {
 public:
  SharedMemory() = default;
  /// Makes `bytes` (rounded up to pages) of zeroed memory, pages allocated when first touched.
  /// Throws Error(kTransport) with cause and remedy.
  static SharedMemory create(size_t bytes);
  /// Maps the memory that process `pid` holds as `fd`, read-only or not. Throws Error(kTransport)
  /// with cause and remedy.
  static SharedMemory open(int pid, int fd, size_t bytes, bool writable);

  SharedMemory(SharedMemory&&) noexcept;
  SharedMemory& operator=(SharedMemory&&) noexcept;
  ~SharedMemory();

  /// In the process that made it: gives the pages that lie in [at, at + bytes) as a whole back to
  /// the system, for all who map them; they read as zeros until they are written again. Only a
  /// request, too.
  void discard(const std::byte* at, size_t bytes);
  /// In the process that made it: [at, at + bytes) reads as zeros, for all who map it. It is whole
  /// words of 8 bytes, each of which a peer may observe() meanwhile. What of it are pages as a
  /// whole goes back to the system.
  void clear(std::byte* at, size_t bytes);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  bool contains(const void* at, size_t bytes) const { return lies_in({data_, bytes_}, at, bytes); }

 private:
  std::span<std::byte> pages_within(const std::byte* at, size_t bytes) const;
  bool punch(std::span<std::byte> pages) const;

  Fd fd_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Identity of the running kernel, /proc/sys/kernel/random/boot_id: equal on the ranks of one host
/// and nowhere else.
std::string boot_id();

}  // namespace ringcoll
