#include "base/faster_way.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace ringcoll {

FasterWay::FasterWay(Options options)
    : options_(std::move(options)),
      per_byte_(options_.weights.size(), std::vector<double>(kTrials)) {}

void FasterWay::did(uint64_t bytes, std::optional<Duration> time) {
  if (bytes < options_.least_bytes) return;
  bool counts = time && asks(bytes);
  double per_byte = counts ? to_seconds(*time) / static_cast<double>(bytes) : 0;
  if (settled()) {
    works_++;
    rested_bytes_ += bytes;
    uint64_t rest = best_ == 0 ? options_.rest_bytes : options_.rest_of_others_bytes;
    if (rested_bytes_ >= rest || (counts && has_changed(per_byte))) try_again();
    return;
  }
  warm_bytes_ += bytes;
  if (!counts) return;
  size_t way = trial_ / kTrials;
  per_byte_[way][trial_ % kTrials] = options_.weights[way] * per_byte;
  trial_++;
  if (trial_ % kTrials == 0) warm_bytes_ = 0;
  if (settled()) settle();
}

void FasterWay::try_again() { trial_ = warm_bytes_ = 0; }

void FasterWay::settle() {
  auto middle = [](std::vector<double>& times) {
    std::ranges::sort(times);
    return times[kTrials / 2];
  };
  auto best = std::ranges::min_element(per_byte_, {}, middle);
  size_t before = std::exchange(best_, static_cast<size_t>(best - per_byte_.begin()));
  if (best_ != before)
    patience_ = kChanged;
  else if (changed_ == patience_)
    patience_ *= 2;
  per_byte_of_best_ = middle(*best) / options_.weights[best_];
  rested_bytes_ = 0;
  works_ = 1;  // the first check is kCheckEvery works away
  changed_ = 0;
}

bool FasterWay::has_changed(double per_byte) {
  bool changed =
      per_byte > kChangedBy * per_byte_of_best_ || per_byte_of_best_ > kChangedBy * per_byte;
  changed_ = changed ? changed_ + 1 : 0;
  return changed_ == patience_;
}

// What was not in use for a while (an arena) is in nobody's caches. A way that is slower by half is
// tried at the cost of one percent.
FasterWay& FasterWays::about(uint64_t bytes) {
  constexpr uint64_t kFewest = 3, kMost = 64, kWarmUpBytes = 4 << 20, kRestOfATrial = 50;
  int size = std::bit_width(bytes);
  if (auto known = by_size_.find(size); known != by_size_.end()) return known->second;
  uint64_t about = uint64_t{1} << size;
  uint64_t warm_up = std::clamp(kWarmUpBytes, kFewest * about, kMost * about);
  uint64_t rest = kRestOfATrial * (warm_up + FasterWay::kTrials * about);
  FasterWay::Options options{.weights = {1, 1},
                             .warm_up_bytes = warm_up,
                             .rest_bytes = rest,
                             .rest_of_others_bytes = rest};
  return by_size_.try_emplace(size, std::move(options)).first->second;
}

}  // namespace ringcoll
