// Finds the fastest of several ways to do the same work, while they do it (docs/design.md,
// "Copies"). Pure. One thread at a time.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace ringcoll {

/// Tries one way after the other. A way first does the work for a while, so that caches are as
/// usual, and then kTrials works are timed. From then on the way that took the least does the work,
/// until all ways are tried again.
///
/// Works and bytes alone decide which way is tried when. So ranks that do a work together, whose
/// times depend on one another, try the same way at once, and each then uses the way that it has
/// found.
class FasterWay {
 public:
  struct Options {
    /// For each way, a factor on its time. It stands for costs that arise outside the timed work.
    std::vector<double> weights;
    /// A shorter work goes the first way, and its time does not count.
    uint64_t least_bytes = 0;
    uint64_t first_warm_up_bytes = 0;  // of each way, before its first trials
    uint64_t warm_up_bytes = 0;        // before later ones
    uint64_t rest_bytes = 256 << 20;   // while the first way is best, until all are tried again
    uint64_t rest_of_others_bytes = 256 << 20;
  };
  explicit FasterWay(Options options);
  /// Two ways for works of about `about` bytes, with no costs outside the timed work.
  static FasterWay of_two(uint64_t about);

  /// Whether did() needs the time of the next work, on so many bytes.
  bool asks(uint64_t bytes) const { return is_trying(bytes) && bytes_ >= warm_up_bytes(); }
  /// The way for the next work.
  size_t next(uint64_t bytes) const { return is_trying(bytes) ? way_ : best(bytes); }
  /// Whether the next work is done in a way under trial.
  bool is_trying(uint64_t bytes) const { return bytes >= options_.least_bytes && way_ < ways(); }
  /// Reports that the work is done, and took `time`. None: it was not asked for, or says nothing.
  /// If a way has fewer than kFewest times, the choice stays as it was.
  void did(uint64_t bytes, std::optional<Duration> time);
  /// The fastest way as far as is known.
  size_t best(uint64_t bytes) const { return bytes < options_.least_bytes ? 0 : best_; }

  static constexpr size_t kTrials = 16, kFewest = 8;

 private:
  size_t ways() const { return options_.weights.size(); }
  uint64_t warm_up_bytes() const {
    return tried_ ? options_.warm_up_bytes : options_.first_warm_up_bytes;
  }
  void settle();

  Options options_;
  std::vector<std::vector<double>> per_byte_;  // seconds, by way and trial
  size_t best_ = 0;
  size_t way_ = 0;      // under trial; ways(): none
  size_t trial_ = 0;    // of way_
  uint64_t bytes_ = 0;  // moved by way_, or since settle()
  bool tried_ = false;  // all ways, at least once
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

/// How many bytes a way moves before it is timed, for works of about `about` bytes. Memory that was
/// not used for a while (an arena) is in no cache at first.
uint64_t warm_up_bytes_of(uint64_t about);
/// After how many bytes all ways are tried again. A way that is slower by half then costs one
/// percent.
uint64_t rest_bytes_of(uint64_t about);

/// One choice for each power of two of bytes: the fastest way depends on the length, and so do
/// times for a byte.
class FasterWayBySize {
 public:
  /// `make` makes the choice for works of about so many bytes.
  explicit FasterWayBySize(FasterWay (*make)(uint64_t about) = FasterWay::of_two) : make_(make) {}

  FasterWay& about(uint64_t bytes) {
    int size = std::bit_width(bytes);
    auto known = by_size_.find(size);
    if (known != by_size_.end()) return known->second;
    return by_size_.try_emplace(size, make_(uint64_t{1} << size)).first->second;
  }

 private:
  FasterWay (*make_)(uint64_t about);
  std::map<int, FasterWay> by_size_;
};

}  // namespace ringcoll
