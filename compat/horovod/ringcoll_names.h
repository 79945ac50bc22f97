// The name of the backend in the environment.
#pragma once

#include <strings.h>

#include <cstdlib>

#define HOROVOD_RINGCOLL "RINGCOLL"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// Whether the value of a variable names the backend; null: the variable is not set.
inline bool is_ringcoll(const char* value) {
  return value != nullptr && strcasecmp(value, HOROVOD_RINGCOLL) == 0;
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
