// Which of several ways to do the same is the fastest one, found while they work (docs/design.md,
// "Copies"). Pure. One thread at a time.
#pragma once

#include <array>
#include <bit>
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
  /// Of two that are timed where they are paid for, for works of about so many bytes.
  static FasterWay of_two(uint64_t about);

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

/// The faster of two ways where ranks do a work together, each its part in the way that it has
/// found, and all take the time of all. When a way is tried follows from what was done alone, and
/// so is the same on all ranks: each would time the ways of the others else.
class FasterWayInStep {
 public:
  struct Options {
    uint64_t first_warm_up_bytes = 0;  // of each way, the first time
    uint64_t warm_up_bytes = 0;        // and later
    uint64_t rest_bytes = 256 << 20;
  };
  explicit FasterWayInStep(const Options& options) : options_(options) {}

  size_t next() const { return is_trying() ? way_ : best_; }
  /// Whether the time of the next work is asked for.
  bool asks() const { return is_trying() && bytes_ >= warm_up_bytes(); }
  bool is_trying() const { return way_ < kWays; }
  /// It is done; it took `time`. None: it was not asked for, or says nothing. Of a way of which
  /// little is known so, nothing is found.
  void did(uint64_t bytes, std::optional<Duration> time);

  static constexpr size_t kTrials = 16, kFewest = 8;

 private:
  static constexpr size_t kWays = 2;

  uint64_t warm_up_bytes() const {
    return tried_ ? options_.warm_up_bytes : options_.first_warm_up_bytes;
  }
  void settle();

  Options options_;
  std::array<std::vector<double>, kWays> per_byte_;
  size_t best_ = 0;
  size_t way_ = 0;      // that is tried; kWays: none
  size_t trial_ = 0;    // of it
  uint64_t bytes_ = 0;  // by it, or since it is known which is faster
  bool tried_ = false;  // both, once
};

/// For works of about so many bytes. What was not in use for a while (an arena) is in nobody's
/// caches, and a way is not timed before it has moved so much.
uint64_t warm_up_bytes_of(uint64_t about);
/// And after that much all are tried again: one that is slower by half costs one percent so.
uint64_t rest_bytes_of(uint64_t about);

/// A choice for each power of two of bytes: what is faster for short messages need not be for long
/// ones, and times for a byte differ.
template <typename Way>
class BySize {
 public:
  /// `make`: the choice for works of about so many bytes.
  explicit BySize(Way (*make)(uint64_t about)) : make_(make) {}

  Way& about(uint64_t bytes) {
    int size = std::bit_width(bytes);
    auto known = by_size_.find(size);
    if (known != by_size_.end()) return known->second;
    return by_size_.try_emplace(size, make_(uint64_t{1} << size)).first->second;
  }

 private:
  Way (*make_)(uint64_t about);
  std::map<int, Way> by_size_;
};

}  // namespace ringcoll
