// How many streams of a link carry long messages. The tuner measures on the link itself, while it
// works, how many are worth their cost. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace ringcoll::tcp {

class StreamTuner {
 public:
  /// Always so many.
  static StreamTuner fixed(size_t streams) { return StreamTuner(streams, false); }
  /// Measures 1, 2, 4 … up to `most`, which is at least 1.
  static StreamTuner measured(size_t most) { return StreamTuner(most, true); }

  /// How many streams the next long message uses.
  size_t streams() const { return streams_; }
  /// The peer has received so many more bytes in `busy`. Time in which the link had nothing to send
  /// does not count.
  void sent(uint64_t bytes, Duration busy);

  /// Bytes of one measurement: many times what is still under way on other streams when it begins.
  static constexpr uint64_t kEpochBytes = 16 << 20;
  /// Each number is measured so often, in turn; the median counts.
  static constexpr int kRounds = 3;
  /// More streams must be faster by this factor: they cost memory and a share of other traffic.
  static constexpr double kPays = 1.1;
  /// After so many bytes all numbers are measured again; the network may have changed.
  static constexpr uint64_t kRestBytes = uint64_t{8} << 30;

 private:
  static constexpr size_t kMostChoices = 5;  // 1, 2, 4, 8, 16

  StreamTuner(size_t most, bool measured);
  void end_epoch();
  void begin_trials();
  void settle();

  size_t most_;
  size_t streams_;
  bool measured_;
  bool resting_ = false;  // the number is settled
  size_t choice_ = 0;     // the number being measured is 2 to this power
  int round_ = 0;
  std::array<std::array<double, kRounds>, kMostChoices> rates_{};  // bytes a second of each
  uint64_t bytes_ = 0;
  Duration busy_{};
};

}  // namespace ringcoll::tcp
