// Memory that is ready to be a region: it lies in shared memory that other processes of the host
// map (shm/shared_memory.h), so they copy to and from it without a system call. One pool for the
// process, as for malloc().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "shm/shared_memory.h"

namespace ringcoll::remote {

/// Any thread.
class Pool {
 public:
  /// The pool of this process, which lives until the process ends.
  static Pool& of_process();

  /// Zeroed memory, aligned to a cache line at least, to a page from one page on. Its pages are
  /// allocated when they are first touched. Throws Error(kTransport).
  std::byte* allocate(size_t bytes);
  /// Takes back what allocate() has returned; null does nothing. Its content is gone for all
  /// processes. Throws Error(kInvalidArgument) for other memory.
  void release(std::byte* memory);

  /// Is told of memory before it is released. Must call neither allocate() nor release().
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void released(const std::byte* memory, size_t bytes) = 0;
  };
  void add(Listener& listener);
  /// Once this has returned, the listener is not called any more.
  void remove(Listener& listener);

  /// Where memory lies that allocate() has returned.
  struct Place {
    int fd;
    uint64_t inode;
    size_t segment_bytes;
    size_t offset;
  };
  /// Nothing if some of it lies elsewhere.
  std::optional<Place> place_of(const void* memory, size_t bytes);

 private:
  struct Segment {
    SharedMemory memory;
    std::map<size_t, size_t> used;  // offset -> bytes
  };
  using Segments = std::map<const std::byte*, std::unique_ptr<Segment>>;

  std::byte* allocate_in(Segment& segment, size_t bytes);
  Segment& add_segment(size_t bytes);
  Segments::iterator segment_of(const void* memory);

  std::mutex listeners_mutex_;  // before mutex_
  std::vector<Listener*> listeners_;
  std::mutex mutex_;
  Segments segments_;  // by their first byte
};

}  // namespace ringcoll::remote
