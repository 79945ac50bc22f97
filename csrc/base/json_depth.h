// A limit on the depth of JSON from outside: its parser, copies and writers need a stack as deep as
// it is nested.
#pragma once

#include <string_view>

#include "base/error.h"

namespace ringcoll {

/// A callback for Json::parse(). It throws Error(kInvalidArgument), which begins with `what`, if
/// the JSON is nested deeper than `most`.
inline auto no_deeper_than(int most, std::string_view what) {
  return [most, what](int depth, auto /*event*/, auto& /*value*/) {
    check(depth <= most, Code::kInvalidArgument,
          "{}: objects and arrays are nested more than {} deep", what, most);
    return true;
  };
}

}  // namespace ringcoll
