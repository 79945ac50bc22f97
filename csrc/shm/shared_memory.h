// Anonymous shared memory (memfd). It lies in no file system, so a killed process leaves nothing
// behind, and a full /dev/shm does not matter. Peers of the same host map it through
// /proc/<pid>/fd/<fd>. If that works, they are allowed to (same user, same PID namespace).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/fd.h"

namespace ringcoll {

/// True if all of [at, at + bytes) is in `memory`.
inline bool lies_in(std::span<const std::byte> memory, const void* at, size_t bytes) {
  auto* first = static_cast<const std::byte*>(at);
  return first >= memory.data() && bytes <= memory.size() &&
         static_cast<size_t>(first - memory.data()) <= memory.size() - bytes;
}

/// A mapping, its size, its inode and, in the process that made it, its descriptor. Move-only; the
/// destructor unmaps and closes.
class SharedMemory {
 public:
  SharedMemory() = default;
  /// Makes `bytes` (rounded up to pages) of zeroed memory. Its pages are allocated when they are
  /// first touched. Throws Error(kTransport) with cause and remedy.
  static SharedMemory create(size_t bytes);
  /// Maps the memory that process `pid` holds as `fd`, read-only or not. Throws Error(kTransport)
  /// with cause and remedy.
  static SharedMemory open(int pid, int fd, size_t bytes, bool writable);

  SharedMemory(SharedMemory&&) noexcept;
  SharedMemory& operator=(SharedMemory&&) noexcept;
  ~SharedMemory();

  /// Only in the process that made the memory. Gives the pages that lie wholly in [at, at + bytes)
  /// back to the system, for all processes that map them. They read as zeros until they are written
  /// again. This is a request, which the system may refuse.
  void discard(const std::byte* at, size_t bytes);
  /// Only in the process that made the memory. Makes [at, at + bytes) read as zeros for all
  /// processes that map it, and gives whole pages of it back to the system. The stretch consists of
  /// words of 8 bytes, each of which a peer may observe() meanwhile.
  void clear(std::byte* at, size_t bytes);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  /// Tells this memory from all other memory of the host while it lives.
  uint64_t inode() const { return inode_; }
  bool contains(const void* at, size_t bytes) const { return lies_in({data_, bytes_}, at, bytes); }

 private:
  std::span<std::byte> pages_within(const std::byte* at, size_t bytes) const;
  bool punch(std::span<std::byte> pages) const;

  Fd fd_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  uint64_t inode_ = 0;
};

/// Identity of the running kernel, /proc/sys/kernel/random/boot_id: equal on the ranks of one host
/// and nowhere else.
std::string boot_id();

}  // namespace ringcoll
