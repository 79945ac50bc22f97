// Which of two ways to do the same is the faster one, found while they work (docs/design.md,
// "Copies"). Pure. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace ringcoll {

/// The ways take turns until each was timed kTrials times; then the one with the better median does
/// the work, until kRestBytes later both are tried again: what they cost may have changed.
class FasterWay {
 public:
  /// Of both ways the one, 0 or 1, by which the next work is done.
  size_t next() const { return way_; }
  /// It took so long for so many bytes. What is short says little and does not count.
  void took(uint64_t bytes, Duration time);

  static constexpr size_t kTrials = 7;
  static constexpr uint64_t kLeastBytes = 32 << 10;
  /// Of pieces of 128 KiB the trials are less than a hundredth of this.
  static constexpr uint64_t kRestBytes = 256 << 20;

 private:
  std::array<std::array<double, kTrials>, 2> per_byte_{};
  size_t way_ = 0;
  size_t trial_ = 0;  // 2 * kTrials: settled
  uint64_t rested_bytes_ = 0;
};

/// For what lies in no cache: in order (0), or from four pages at a time (1). Processors differ in
/// which is faster, and so do distances between cores.
struct MemoryWays {
  FasterWay pack;
  FasterWay combine;
};

}  // namespace ringcoll
