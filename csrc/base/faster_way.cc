#include "base/faster_way.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ringcoll {

FasterWay::FasterWay(Options options)
    : options_(std::move(options)),
      per_byte_(options_.weights.size(), std::vector<double>(kTrials)) {}

FasterWay FasterWay::of_two(uint64_t about) {
  return FasterWay({.weights = {1, 1},
                    .warm_up_bytes = warm_up_bytes_of(about),
                    .rest_bytes = rest_bytes_of(about),
                    .rest_of_others_bytes = rest_bytes_of(about)});
}

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

void FasterWayInStep::did(uint64_t bytes, std::optional<Duration> time) {
  bool is_trial = asks();
  bytes_ += bytes;
  if (!is_trying()) {
    if (bytes_ >= options_.rest_bytes) way_ = bytes_ = 0;
    return;
  }
  if (!is_trial) return;
  if (time) per_byte_[way_].push_back(to_seconds(*time) / static_cast<double>(bytes));
  if (++trial_ < kTrials) return;
  trial_ = bytes_ = 0;
  if (++way_ == kWays) settle();
}

void FasterWayInStep::settle() {
  tried_ = true;
  bool known = std::ranges::all_of(per_byte_, [](auto& times) { return times.size() >= kFewest; });
  // The mean without the longest eighth, in which some rank was stopped. A median would not do
  // where ranks share cores and run in turn: a work whose data has already come is short, and the
  // next one long.
  auto usual = [](std::vector<double>& times) {
    std::ranges::sort(times);
    times.resize(times.size() - times.size() / 8);
    return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  };
  if (known) best_ = usual(per_byte_[1]) < usual(per_byte_[0]) ? 1 : 0;
  for (auto& times : per_byte_) times.clear();
}

namespace {

constexpr uint64_t kFewestWarm = 3, kMostWarm = 64, kWarmUpBytes = 4 << 20, kRestOfATrial = 50;

}  // namespace

uint64_t warm_up_bytes_of(uint64_t about) {
  return std::clamp(kWarmUpBytes, kFewestWarm * about, kMostWarm * about);
}

uint64_t rest_bytes_of(uint64_t about) {
  return kRestOfATrial * (warm_up_bytes_of(about) + FasterWay::kTrials * about);
}

}  // namespace ringcoll
