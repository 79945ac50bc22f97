#include "table/clocks.h"

#include <algorithm>

#include "base/error.h"

namespace ringcoll {

std::optional<int64_t> Clocks::clock_of(int64_t worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int64_t> Clocks::waits_for(int64_t clock) const {
  check(clock >= 0, Code::kInvalidArgument, "table {}: a pull is at clock {}: clocks begin at 0",
        table_, clock);
  if (!staleness_ || current_ >= clock - *staleness_) return std::nullopt;
  return clock - 1 - *staleness_;
}

void Clocks::check_clock(int64_t worker, int64_t clock) const {
  const auto own = clock_of(worker);
  check(own.has_value(), Code::kInvalidArgument, "table {}: {} is no worker: it must join first",
        table_, worker);
  const int64_t most = std::max(*own, current_);
  check(clock >= 0 && clock <= most, Code::kInvalidArgument,
        "table {}: worker {} is at clock {}, and names clock {}: it must be from 0 to {}", table_,
        worker, *own, clock, most);
}

void Clocks::tick(int64_t worker, int64_t clock) {
  int64_t& own = workers_.at(worker);
  own = std::max(own, clock + 1);
}

void Clocks::end_grace(int64_t clock) {
  if (quorum_ && clock <= current_) grace_ended_ = std::max(grace_ended_, clock);
}

bool Clocks::has_finished(int64_t worker, int64_t clock) const {
  const auto own = clock_of(worker);
  return !own || *own > clock;
}

bool Clocks::has_quorum() const {
  const auto finished =
      std::ranges::count_if(workers_, [&](const auto& one) { return one.second > current_; });
  return quorum_ && finished >= *quorum_;
}

void Clocks::complete() {
  if (workers_.empty()) return;
  const auto clock_of = [](const auto& one) { return one.second; };
  // At once, since a worker that leaves may be any number of clocks behind the others.
  current_ = std::max(current_, clock_of(*std::ranges::min_element(workers_, {}, clock_of)));
  while (grace_ended_ >= current_ && has_quorum()) current_++;
}

void Clocks::restore(const std::map<int64_t, int64_t>& workers, int64_t current,
                     int64_t grace_ended) {
  workers_ = workers;
  current_ = current;
  grace_ended_ = grace_ended;
}

}  // namespace ringcoll
