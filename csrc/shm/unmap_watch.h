// Notices changes of this process's memory. It may be unmapped (free() does that to large blocks),
// mapped anew, moved, or given back to the kernel page by page (MADV_DONTNEED). A device that has
// pinned pages then knows other pages than the address means. With a registration kept by address,
// it would send from, or receive into, memory that nobody sees.
//
// How: userfaultfd(2) with the events UNMAP, REMAP and REMOVE. The kernel holds the thread that
// changes a watched mapping until its event has been read. From before the change until then it
// marks the whole watch as changing. take_changes() waits until the watch is not changing, and then
// takes the events. So it misses no change to memory that the caller can hold by now. The watched
// pages are only registered, never protected, so no access to them is slower or stopped.
//
// A thread of its own reads the events. It allocates nothing: the thread that is being held may
// hold a lock of malloc. A watch ends when all processes that have its descriptor have closed it.
// So a forked child drops its copy at once (base/fork.h). Otherwise memory would still be watched
// with nobody to read the events, and a thread that frees it would be held for ever.
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
  /// Throws Error(kTransport) if the kernel or a sandbox does not offer userfaultfd(2).
  UnmapWatch();
  ~UnmapWatch();
  UnmapWatch(const UnmapWatch&) = delete;
  UnmapWatch& operator=(const UnmapWatch&) = delete;

  /// Watches the pages of [data, data + bytes) from now on. False if the kernel cannot (the private
  /// mapping of a file, memory that another UnmapWatch watches). One thread at a time.
  bool watch(const void* data, size_t bytes);
  /// Calls changed(first, end), with addresses, for every range that has changed since the last
  /// call. A range may never have been watched. Waits until changes under way have been made. One
  /// thread at a time. It must hold no lock that a thread that frees memory may hold.
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
  // If more ranges change between two calls, one that covers everything is reported.
  static constexpr size_t kMostChanges = 256;

  void run();
  void read_events();
  void note(Range change);
  bool changing() const;

  Fd stop_;
  Page probe_;        // a watched page, on which changing() asks
  Fd fd_;             // of userfaultfd(2)
  std::mutex mutex_;  // held while events are read and noted
  std::array<Range, kMostChanges> changes_;
  size_t count_ = 0;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace ringcoll
