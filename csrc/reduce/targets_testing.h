// Runs tests once for each instruction set that this machine has. For tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reduce/simd_targets.h"
// after simd_targets.h
#include "hwy/targets.h"

namespace ringcoll::testing {

/// A test whose parameter is an instruction set. Kernels are looked up anew in each test.
class EachTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { use(GetParam()); }
  void TearDown() override { use(0); }
  static void use(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

inline std::vector<int64_t> all_targets() {
  std::vector<int64_t> found = hwy::SupportedAndGeneratedTargets();
  return found;
}

inline std::string target_text(const ::testing::TestParamInfo<int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace ringcoll::testing
