// Memory of the arena that groups send from. It is cut into extents of one length, and a group
// holds one while it needs it. So the memory of a rank follows the calls in flight and not the
// number of groups, and the first call of a group finds memory that is mapped already.
//
// A peer may still read an extent when the group no longer needs it. Nobody waits for such a peer.
// Whoever gives the extent back names its readers, and no other group gets it until they have read
// everything, have left, or are gone (Transport::readers).
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "net/event_loop.h"
#include "shm/shared_memory.h"
#include "transport/transport.h"

namespace ringcoll {

using ReaderList = std::vector<std::unique_ptr<Readers>>;

/// Any thread.
class Extents {
 public:
  /// The pages of an extent that nobody held for so long go back to the system. The next call that
  /// gets it takes some milliseconds longer.
  static constexpr Duration kIdle = std::chrono::seconds(1);

  /// `region` lies in `arena`, which outlives this object, and is cut into pieces of `each` bytes.
  /// `what` tells in errors what the memory is for. `loop` must end before this object does.
  Extents(SharedMemory& arena, std::span<std::byte> region, size_t each, std::string_view what,
          EventLoop& loop);

  /// The length of each extent.
  size_t bytes() const { return each_; }
  std::span<std::byte> region() const { return region_; }

  /// Takes a free extent: one that nobody holds or reads. It prefers the one that was used last,
  /// whose pages are in memory. Throws Error(kTransport), with the remedy, if all are held or read.
  std::span<std::byte> take(const void* holder);
  /// The holder promises not to use the extent until resume().
  void park(std::span<std::byte> extent, ReaderList readers);
  /// Takes a parked extent back. Returns false if another holder has taken it or its pages went
  /// back to the system.
  bool resume(std::span<std::byte> extent, const void* holder);
  /// The holder will not use the extent again.
  void give_back(std::span<std::byte> extent, ReaderList readers);
  /// Forgets all extents and their readers. Called when no group is left, before the memory goes
  /// that readers look at.
  void end();

 private:
  struct Extent {
    const void* holder = nullptr;  // holds it, or may resume it
    bool held = false;
    bool in_memory = false;  // it may have pages
    Clock::time_point since{};
    ReaderList readers;

    bool is_free();
  };
  Extent& at(std::span<std::byte> extent);
  void put_back(Extent& extent, ReaderList readers);
  void trim_later();
  bool trim();

  SharedMemory& arena_;
  const std::span<std::byte> region_;
  const size_t each_;
  const std::string_view what_;
  EventLoop& loop_;
  std::mutex mutex_;
  std::vector<Extent> extents_;  // as many as were held at one time
  bool will_trim_ = false;
};

/// The memory that one group sends its calls from. One thread at a time.
class CallMemory {
 public:
  /// The group keeps `own` as long as it lives. Transports of its calls may read `own` even later,
  /// so its owner must wait for them before it reuses the memory.
  CallMemory(std::span<std::byte> own, Extents& extents) : own_(own), extents_(extents) {}
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;
  ~CallMemory() { end({}); }

  /// The least memory that a call can have; equal on all ranks.
  size_t bytes() const { return std::max(own_.size(), extents_.bytes()); }
  /// The memory that needs no take().
  std::span<std::byte> own() const { return own_; }
  /// Takes an extent for a call that needs more than own(), until park(). `fresh` is set if it is
  /// not the previous one. Throws Error(kTransport) if no extent is free.
  std::span<std::byte> take(bool* fresh);
  /// True if there is an extent to park.
  bool has_extent() const { return taken_; }
  /// Precondition: no call is in flight, and has_extent(). `readers` may still read what was sent
  /// from the extent.
  void park(ReaderList readers);
  /// The same for good, when the group ends. There need not be an extent.
  void end(ReaderList readers);

 private:
  const std::span<std::byte> own_;
  Extents& extents_;
  std::span<std::byte> extent_;
  bool taken_ = false;
};

}  // namespace ringcoll
