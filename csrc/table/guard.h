// The error of a shard that gets no memory. Private to table/.
#pragma once

#include <fmt/core.h>

#include <new>

#include "base/error.h"
#include "table/spec.h"

namespace ringcoll {

inline Error no_memory(const TableSpec& spec) {
  return {Code::kRefused,
          fmt::format("table {}: memory is lacking for rows of {} bytes, or for pushes that wait: "
                      "nothing has changed",
                      spec.name, static_cast<size_t>(spec.most_elements()) * size_of(spec.dtype))};
}

/// Returns change(). Throws no_memory() where that throws std::bad_alloc.
template <typename Change>
auto with_memory(const TableSpec& spec, Change&& change) {
  try {
    return change();
  } catch (const std::bad_alloc&) {
    throw no_memory(spec);
  }
}

}  // namespace ringcoll
