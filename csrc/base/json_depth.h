// JSON of strangers: parsers, copies and writers of it take a stack as deep as it is nested.
#pragma once

#include <string_view>

#include "base/error.h"

namespace ringcoll {

/// The callback of Json::parse() that has it throw Error(kInvalidArgument), of `what`, where it is
/// nested deeper than that.
inline auto no_deeper_than(int most, std::string_view what) {
  return [most, what](int depth, auto /*event*/, auto& /*value*/) {
    check(depth <= most, Code::kInvalidArgument, "{}: nested more than {} deep", what, most);
    return true;
  };
}

}  // namespace ringcoll
