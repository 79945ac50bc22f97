// Finds the fastest of several ways to do the same work, while they do it (docs/design.md,
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

/// Tries one way after the other. A way first does the work for a while, so that caches are as
/// usual, and is then timed kTrials times. From then on the way with the best median does the work.
/// All ways are tried again some bytes later, or when the cost of a work has changed. For that, one
/// of every kCheckEvery works is timed. Several in a row must differ, so that chance alone starts
/// no new trials.
class FasterWay {
 public:
  struct Options {
    /// For each way, a factor on its time. It stands for costs that arise outside the timed work.
    std::vector<double> weights;
    /// A shorter work goes the first way, and its time does not count.
    uint64_t least_bytes = 0;
    uint64_t warm_up_bytes = 0;
    uint64_t rest_bytes = 256 << 20;  // while the first way is best, until all are tried again
    uint64_t rest_of_others_bytes = 256 << 20;
  };
  explicit FasterWay(Options options);
  /// Two ways for works of about `about` bytes, with no costs outside the timed work.
  static FasterWay of_two(uint64_t about);

  /// Whether did() needs the time of the next work, on so many bytes.
  bool asks(uint64_t bytes) const {
    return bytes >= options_.least_bytes &&
           (settled() ? works_ % kCheckEvery == 0 : warm_bytes_ >= options_.warm_up_bytes);
  }
  /// The way for the next work.
  size_t next(uint64_t bytes) const { return is_trying(bytes) ? trial_ / kTrials : best(bytes); }
  /// Whether the next work is a trial.
  bool is_trying(uint64_t bytes) const { return bytes >= options_.least_bytes && !settled(); }
  /// Reports that the work is done. `time` is what it took, if asks() was true. None: the time says
  /// nothing, and a trial is repeated.
  void did(uint64_t bytes, std::optional<Duration> time);
  /// The fastest way as far as is known.
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
  std::vector<std::vector<double>> per_byte_;  // seconds, by way and trial
  size_t best_ = 0;
  size_t trial_ = 0;         // trials(): settled
  uint64_t warm_bytes_ = 0;  // moved by the way under trial
  // Since the last settle():
  double per_byte_of_best_ = 0;
  uint64_t rested_bytes_ = 0;
  uint64_t works_ = 0;
  int changed_ = 0;          // checks in a row that differed
  int patience_ = kChanged;  // doubled if trials after a change find the same way
};

/// Does the work in the way that has its turn: `work` is called once, with the number of that way.
template <typename Work>
void in_the_faster_way(FasterWay& ways, uint64_t bytes, Work&& work) {
  if (!ways.asks(bytes)) {
    work(ways.next(bytes));
    return ways.did(bytes, {});
  }
  auto start = Clock::now();
  work(ways.next(bytes));
  ways.did(bytes, Clock::now() - start);
}

/// Finds the faster of two ways where ranks do a work together and each one's time depends on all.
/// All ranks must try the same way at once; otherwise each would time the ways of the others. So
/// the way under trial follows from the works alone, which are the same on all ranks. After the
/// trials each rank uses the way that it has found.
class FasterWayInStep {
 public:
  struct Options {
    uint64_t first_warm_up_bytes = 0;  // of each way, before its first trials
    uint64_t warm_up_bytes = 0;        // before later ones
    uint64_t rest_bytes = 256 << 20;
  };
  explicit FasterWayInStep(const Options& options) : options_(options) {}

  size_t next() const { return is_trying() ? way_ : best_; }
  /// Whether did() needs the time of the next work.
  bool asks() const { return is_trying() && bytes_ >= warm_up_bytes(); }
  bool is_trying() const { return way_ < kWays; }
  /// Reports that the work is done, and took `time`. None: it was not asked for, or says nothing.
  /// If a way has fewer than kFewest times, the choice stays as it was.
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
  size_t way_ = 0;      // under trial; kWays: none
  size_t trial_ = 0;    // of way_
  uint64_t bytes_ = 0;  // moved by way_, or since settle()
  bool tried_ = false;  // both ways, at least once
};

/// How many bytes a way moves before it is timed, for works of about `about` bytes. Memory that was
/// not used for a while (an arena) is in no cache at first.
uint64_t warm_up_bytes_of(uint64_t about);
/// After how many bytes all ways are tried again. A way that is slower by half then costs one
/// percent.
uint64_t rest_bytes_of(uint64_t about);

/// One choice for each power of two of bytes: the fastest way depends on the length, and so do
/// times for a byte.
template <typename Way>
class BySize {
 public:
  /// `make` makes the choice for works of about so many bytes.
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
