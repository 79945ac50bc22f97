#include "coll/faster_way.h"

#include <algorithm>

namespace ringcoll {

void FasterWay::took(uint64_t bytes, Duration time) {
  constexpr size_t kSettled = 2 * kTrials;
  if (trial_ == kSettled) {
    rested_bytes_ += bytes;
    if (rested_bytes_ < kRestBytes) return;
    trial_ = way_ = rested_bytes_ = 0;
    return;
  }
  if (bytes < kLeastBytes) return;
  per_byte_[way_][trial_ / 2] = to_seconds(time) / static_cast<double>(bytes);
  trial_++;
  way_ = trial_ % 2;
  if (trial_ < kSettled) return;
  for (auto& times : per_byte_) std::ranges::sort(times);
  way_ = per_byte_[1][kTrials / 2] < per_byte_[0][kTrials / 2];
}

}  // namespace ringcoll
