#include "transport/tcp/tuner.h"

#include <algorithm>

namespace ringcoll::tcp {

StreamTuner::StreamTuner(size_t most, bool measured)
    : most_(most), streams_(most), measured_(measured && most > 1) {
  if (measured_) begin_trials();
}

void StreamTuner::begin_trials() {
  resting_ = false;
  rates_ = {};
  choice_ = 0;
  round_ = 0;
  streams_ = 1;
}

void StreamTuner::sent(uint64_t bytes, Duration busy) {
  if (!measured_) return;
  bytes_ += bytes;
  busy_ += busy;
  if (bytes_ < (resting_ ? kRestBytes : kEpochBytes)) return;
  end_epoch();
  bytes_ = 0;
  busy_ = {};
}

void StreamTuner::end_epoch() {
  if (resting_) return begin_trials();
  rates_[choice_][round_] = static_cast<double>(bytes_) / std::max(to_seconds(busy_), 1e-9);
  choice_++;
  if (choice_ == kMostChoices || size_t{1} << choice_ > most_) {
    choice_ = 0;
    if (++round_ == kRounds) return settle();
  }
  streams_ = size_t{1} << choice_;
}

void StreamTuner::settle() {
  size_t chosen = 0;
  for (auto& rates : rates_) std::ranges::sort(rates);
  auto rate = [&](size_t choice) { return rates_[choice][kRounds / 2]; };
  for (size_t i = 1; i < kMostChoices; i++)
    if (rate(i) > kPays * rate(chosen)) chosen = i;
  streams_ = size_t{1} << chosen;
  resting_ = true;
}

}  // namespace ringcoll::tcp
