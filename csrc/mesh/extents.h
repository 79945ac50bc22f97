// Memory of the arena that groups send from, in extents of one length, which are lent to a group
// while it needs one. So the memory of a rank follows the calls that it makes at a time, and not
// the groups that it is in; and a group that makes its first call finds memory that is mapped
// already.
//
// What was sent from an extent may not have been read when its group is done with it. A peer is
// never waited for: whoever gives the extent back names its readers, and nobody else gets it before
// they have read all, have left, or are gone (Transport::readers).
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
  /// The pages of an extent that nobody has held for so long go back to the system. A call that
  /// gets it then takes some milliseconds longer.
  static constexpr Duration kIdle = std::chrono::seconds(1);

  /// `region` is of `arena`, which outlives this, and is cut into pieces of `each` bytes. `what`
  /// says in errors what they are for. `loop` ends before this does.
  Extents(SharedMemory& arena, std::span<std::byte> region, size_t each, std::string_view what,
          EventLoop& loop);

  /// Of each.
  size_t bytes() const { return each_; }
  std::span<std::byte> region() const { return region_; }

  /// Of those that nobody holds or reads the one that was held last, which is in memory already;
  /// else one more. Throws Error(kTransport), with the remedy, if all are held or read.
  std::span<std::byte> take(const void* holder);
  /// The holder does without it until resume().
  void park(std::span<std::byte> extent, ReaderList readers);
  /// False: another has taken it meanwhile, or its pages went back to the system.
  bool resume(std::span<std::byte> extent, const void* holder);
  /// The holder is done with it.
  void give_back(std::span<std::byte> extent, ReaderList readers);
  /// Forgets all of them. No group is left, and what their readers look at is about to go.
  void end();

 private:
  struct Extent {
    const void* holder = nullptr;  // that holds it, or could resume it
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
  std::vector<Extent> extents_;  // as many as were held at a time
  bool will_trim_ = false;
};

/// What one group sends its calls from. One thread at a time.
class CallMemory {
 public:
  /// `own` is the group's as long as it lives. A transport of the group's calls may read it after
  /// that: whoever gives it back sees to that.
  CallMemory(std::span<std::byte> own, Extents& extents) : own_(own), extents_(extents) {}
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;
  ~CallMemory() { end({}); }

  /// What a call can have, at least; all ranks have as much.
  size_t bytes() const { return std::max(own_.size(), extents_.bytes()); }
  /// What it has without asking.
  std::span<std::byte> own() const { return own_; }
  /// An extent for what is longer, until park(). `fresh` is set if it is not the one of before.
  /// Throws Error(kTransport) if there is none.
  std::span<std::byte> take(bool* fresh);
  /// Whether it has one that it could park.
  bool has_extent() const { return taken_; }
  /// No call is in flight. `readers`: who may still read what was sent from the extent.
  void park(ReaderList readers);
  /// The group has ended: the same, but for good.
  void end(ReaderList readers);

 private:
  const std::span<std::byte> own_;
  Extents& extents_;
  std::span<std::byte> extent_;
  bool taken_ = false;
};

}  // namespace ringcoll
