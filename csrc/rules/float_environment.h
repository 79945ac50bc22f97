// The floating-point environment in which rules are applied.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace ringcoll {

/// While it lives, this thread rounds to nearest and keeps subnormal numbers. Other code of the
/// process may have chosen otherwise, and new threads inherit that.
class FloatEnvironment {
 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

#if defined(__x86_64__)
  // Only that of SSE: float and double do not use the x87 unit, and std::fesetenv(), which sets its
  // environment too, takes a sixth of the time of a small push.
  FloatEnvironment() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~FloatEnvironment() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // as after a reset: no exception traps
  unsigned before_;
#else
  FloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
#endif
};

}  // namespace ringcoll
