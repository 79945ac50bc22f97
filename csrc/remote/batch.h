// Copies between memory of this process and regions, in flight together.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "remote/handle.h"

namespace ringcoll::remote {

/// Bytes of a region. A copy that reads may have several alternatives with equal bytes.
struct Source {
  std::shared_ptr<const RegionHandle> region;
  uint64_t offset = 0;
  int64_t distance =
      0;  // the nearest are used while there are any; equally near ones share the copy
};

struct Copy {
  bool writes = false;
  std::byte* local = nullptr;  // borrowed until the batch has ended; only read if `writes`
  uint64_t bytes = 0;
  std::vector<Source> sources;     // for a write, the one target
  std::optional<uint64_t> notice;  // of a write: given to the region after the bytes
};

/// The order of copies is not defined. If one fails, the others may have been made or not. Any
/// thread.
class Batch {
 public:
  using Done = std::function<void(const std::optional<Error>&)>;

  /// Throws Error(kInvalidArgument) if a copy leaves its region or has no source, and
  /// Error(kRefused) if a target is not writable, as far as the handles tell.
  Batch(std::vector<Copy> copies, Duration limit, Done done);

  const std::vector<Copy>& copies() const { return copies_; }
  const Deadline& deadline() const { return deadline_; }
  /// Returns once the batch has ended and `done` has returned. Throws its error. False if `limit_s`
  /// passes first (negative: no limit). May end early by Interruption::has_ended(), false then too.
  bool wait(double limit_s);
  /// True from before `done` is called, so that whoever is woken by it need not look again.
  bool has_ended() const;
  /// Whether a wait could end: not in the `done` of another batch, whose thread makes progress on
  /// all of them.
  bool may_wait() const;
  /// Ends it once; later calls do nothing.
  void end(std::optional<Error> error);

 private:
  const std::vector<Copy> copies_;
  const Deadline deadline_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  enum class State : uint8_t { kRunning, kCallingBack, kEnded } state_ = State::kRunning;
  std::thread::id teller_;
  std::optional<Error> error_;
  Done done_;
};

}  // namespace ringcoll::remote
