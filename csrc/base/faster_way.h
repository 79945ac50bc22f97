// Which of several ways to do the same is the fastest one, found while they work (docs/design.md,
// "Copies"). Pure. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace ringcoll {

/// One way after the other is tried: it does the work for a while, so that caches are as they are
/// where it always does, and is then timed kTrials times. The one with the best median does the
/// work from then on. All are tried again some bytes later, or when what it costs has changed: of
/// every kCheckEvery works one is timed, and so many in a row have to differ that chance does not
/// do it.
class FasterWay {
 public:
  struct Options {
    /// Of each way by how much its time is multiplied, for what it costs where it is not seen.
    std::vector<double> weights;
    /// What is shorter goes the first way, and its time does not count.
    uint64_t least_bytes = 0;
    uint64_t warm_up_bytes = 0;
    uint64_t rest_bytes = 256 << 20;  // of the first way, until all are tried again
    uint64_t rest_of_others_bytes = 256 << 20;
  };
  explicit FasterWay(Options options);

  /// Whether the time of the next work, on so many bytes, is asked for.
  bool asks(uint64_t bytes) const {
    return bytes >= options_.least_bytes &&
           (settled() ? works_ % kCheckEvery == 0 : warm_bytes_ >= options_.warm_up_bytes);
  }
  /// The way by which to do it.
  size_t next(uint64_t bytes) const { return is_trying(bytes) ? trial_ / kTrials : best(bytes); }
  /// Whether the next work is to find out which way is the fastest.
  bool is_trying(uint64_t bytes) const { return bytes >= options_.least_bytes && !settled(); }
  /// It is done; it took `time`, if that was asked for. None: what it took says nothing, and it is
  /// asked for again.
  void did(uint64_t bytes, std::optional<Duration> time);
  /// The fastest as far as is known.
  size_t best(uint64_t bytes) const { return bytes < options_.least_bytes ? 0 : best_; }

  static constexpr size_t kTrials = 7;
  static constexpr uint64_t kCheckEvery = 32;
  static constexpr int kChanged = 3;
  static constexpr double kChangedBy = 2;

 private:
  size_t trials() const { return kTrials * options_.weights.size(); }
  bool settled() const { return trial_ == trials(); }
  void try_again();
  void settle();
  bool has_changed(double per_byte);

  Options options_;
  std::vector<std::vector<double>> per_byte_;  // of each way, its trials
  size_t best_ = 0;
  size_t trial_ = 0;         // trials(): settled
  uint64_t warm_bytes_ = 0;  // by the way that is tried
  // Since it has settled.
  double per_byte_of_best_ = 0;
  uint64_t rested_bytes_ = 0;
  uint64_t works_ = 0;
  int changed_ = 0;          // times in a row
  int patience_ = kChanged;  // twice as much after each time that nothing came of it
};

/// One of two ways for each power of two of bytes: what is faster for short messages need not be
/// for long ones, and times for a byte differ.
class FasterWays {
 public:
  /// For about so many.
  FasterWay& about(uint64_t bytes);

 private:
  std::map<int, FasterWay> by_size_;
};

}  // namespace ringcoll
