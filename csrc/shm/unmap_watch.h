// Notices that memory of this process is not what it was: unmapped (free() does that to large
// blocks), mapped anew, moved, or given back to the kernel page by page (MADV_DONTNEED). For a
// device that has pinned pages, the address then means other pages than it knows, and whoever kept
// a registration by address would send, or receive into, memory that nobody sees.
//
// How: userfaultfd(2) with the events UNMAP, REMAP and REMOVE. The kernel holds the thread that
// changes a watched mapping until its event has been read, and marks the whole watch as changing
// from before it changes the mapping until then. So once take_changes() has seen a watch that is
// not changing, and has taken what was read, it has missed nothing that a thread has done to
// memory which the caller can hold by now. The watched pages are only registered, never protected:
// no access to them is slower or stopped.
//
// A thread of its own reads the events. It allocates nothing: the thread that is being held may
// hold a lock of malloc. A watch ends when its descriptor is closed, by all who have it: a forked
// child puts its copy away at once, or memory would go on being watched with nobody to read the
// events, and whoever frees it be held for ever.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "base/fd.h"

namespace ringcoll {

class UnmapWatch {
 public:
  /// Throws Error(kTransport) where the kernel or a sandbox does not offer it.
  UnmapWatch();
  ~UnmapWatch();
  UnmapWatch(const UnmapWatch&) = delete;
  UnmapWatch& operator=(const UnmapWatch&) = delete;

  /// Watches the pages of [data, data + bytes) from now on. False if the kernel cannot (the private
  /// mapping of a file, memory that another of these watches). One thread at a time.
  bool watch(const void* data, size_t bytes);
  /// Calls changed(first, end), with addresses, for every range that has changed since the last
  /// time; it may be called for memory that was never watched. Waits until changes under way have
  /// been made. One thread at a time, which holds no lock that somebody may hold who frees memory.
  void take_changes(const std::function<void(uintptr_t first, uintptr_t end)>& changed);

 private:
  struct Range {
    uintptr_t first, end;
  };
  struct Page {
    Page();
    ~Page();
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;
    std::byte* data;
  };
  // More than these between two calls are told as one that covers everything.
  static constexpr size_t kMostChanges = 256;

  void run();
  void read_events();
  void note(Range change);
  bool changing() const;

  Fd stop_;
  Page probe_;        // watched; changing() asks on it
  Fd fd_;             // of userfaultfd(2)
  std::mutex mutex_;  // held while events are read and noted
  std::array<Range, kMostChanges> changes_;
  size_t count_ = 0;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace ringcoll
