// When the log reports a long wait (docs/design.md, "Death and errors").
#pragma once

#include <chrono>

#include "base/clock.h"
#include "base/log.h"

namespace ringcoll {

/// One wait for another rank. A slow rank is not a dead one, so the log names the awaited rank long
/// before the deadline. It does so first after kFirst, then each time that the age of the wait has
/// doubled.
class LongWait {
 public:
  static constexpr Duration kFirst = std::chrono::seconds(30);

  explicit LongWait(Clock::time_point begin = Clock::now()) : begin_(begin) {}

  /// When to call is_news() again.
  Clock::time_point next() const { return begin_ + next_age_; }
  /// True once at each of these ages.
  bool is_news(Clock::time_point now) {
    if (now < next()) return false;
    while (now >= next()) next_age_ *= 2;
    return true;
  }
  /// Logs a warning if is_news(). `own`, `awaited`: the ranks in words; `doing`: the call or
  /// message. All three are functions, called only if there is a warning.
  template <typename Own, typename Doing, typename Awaited>
  void tell(Clock::time_point now, Own&& own, Doing&& doing, Awaited&& awaited) {
    if (is_news(now))
      log_warning("{}: {} has waited {} s for {}", own(), doing(), age_s(now), awaited());
  }
  /// The age of the wait in whole seconds.
  long age_s(Clock::time_point now) const {
    return static_cast<long>(
        std::chrono::duration_cast<std::chrono::seconds>(now - begin_).count());
  }

 private:
  Clock::time_point begin_;
  Duration next_age_ = kFirst;
};

}  // namespace ringcoll
