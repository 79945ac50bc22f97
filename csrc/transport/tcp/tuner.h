// How many streams of a link carry long messages: as many as measurement on the link itself, while
// it works, shows to pay. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace ringcoll::tcp {

class StreamTuner {
 public:
  /// So many, always.
  static StreamTuner fixed(size_t streams) { return StreamTuner(streams, false); }
  /// 1, 2, 4 … up to `most`, which is at least 1.
  static StreamTuner measured(size_t most) { return StreamTuner(most, true); }

  /// For the next long message.
  size_t streams() const { return streams_; }
  /// The peer has so many bytes more, in `busy`; time in which the link had nothing to send does
  /// not count.
  void sent(uint64_t bytes, Duration busy);

  /// Bytes of one measurement: many times what is still on its way when it begins, by other
  /// streams.
  static constexpr uint64_t kEpochBytes = 16 << 20;
  /// Each number is measured so often, in turn, and the median counts.
  static constexpr int kRounds = 3;
  /// Another stream has to be faster by this factor: it costs memory and a share of other traffic.
  static constexpr double kPays = 1.1;
  /// Measured again after so many bytes; the network may have changed.
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
  size_t choice_ = 0;     // what is measured: 2 to this power
  int round_ = 0;
  std::array<std::array<double, kRounds>, kMostChoices> rates_{};  // bytes a second of each
  uint64_t bytes_ = 0;
  Duration busy_{};
};

}  // namespace ringcoll::tcp
