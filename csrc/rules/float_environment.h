// The floating-point environment in which rules are applied.
#pragma once

#include <cfenv>

namespace ringcoll {

/// While it lives, this thread rounds to nearest and keeps subnormal numbers. Other code of the
/// process may have chosen otherwise, and new threads inherit that.
class FloatEnvironment {
 public:
  FloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&before_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace ringcoll
