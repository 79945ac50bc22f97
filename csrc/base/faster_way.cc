#include "base/faster_way.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ringcoll {

FasterWay::FasterWay(Options options)
    : options_(std::move(options)), per_byte_(options_.weights.size()) {}

FasterWay FasterWay::of_two(uint64_t about) {
  return FasterWay({.weights = {1, 1},
                    .first_warm_up_bytes = warm_up_bytes_of(about),
                    .warm_up_bytes = warm_up_bytes_of(about),
                    .rest_bytes = rest_bytes_of(about),
                    .rest_of_others_bytes = rest_bytes_of(about)});
}

void FasterWay::did(uint64_t bytes, std::optional<Duration> time) {
  if (bytes < options_.least_bytes) return;
  bool is_trial = asks(bytes);
  bytes_ += bytes;
  if (!is_trying(bytes)) {
    uint64_t rest = best_ == 0 ? options_.rest_bytes : options_.rest_of_others_bytes;
    if (bytes_ >= rest) way_ = bytes_ = 0;
    return;
  }
  if (!is_trial) return;
  if (time) per_byte_[way_].push_back(to_seconds(*time) / static_cast<double>(bytes));
  if (++trial_ < kTrials) return;
  trial_ = bytes_ = 0;
  if (++way_ == ways()) settle();
}

void FasterWay::settle() {
  tried_ = true;
  bool known = std::ranges::all_of(per_byte_, [](auto& times) { return times.size() >= kFewest; });
  // The mean without the longest quarter, in which some rank was stopped. A median would not do
  // where ranks share cores and run in turn: a work whose data has already come is short, and the
  // next one long.
  auto usual = [this](size_t way) {
    std::vector<double>& times = per_byte_[way];
    std::ranges::sort(times);
    times.resize(times.size() - times.size() / 4);
    double sum = std::accumulate(times.begin(), times.end(), 0.0);
    return options_.weights[way] * sum / static_cast<double>(times.size());
  };
  if (known) {
    double least = usual(best_ = 0);
    for (size_t way = 1; way < ways(); way++)
      if (double time = usual(way); time < least) least = time, best_ = way;
  }
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
