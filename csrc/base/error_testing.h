// What tests ask of an error. For tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace ringcoll::testing {

/// The Error that `action` throws; a failure of the test if it throws none.
inline Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {Code::kInternal, ""};
}

}  // namespace ringcoll::testing
