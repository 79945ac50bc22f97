// The name of the backend in environment variables.
#pragma once

#include <strings.h>

#include <cstdlib>

#define HOROVOD_RINGCOLL "RINGCOLL"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// True if the value of a variable names the backend; null means that the variable is not set.
inline bool is_ringcoll(const char* value) {
  return value != nullptr && strcasecmp(value, HOROVOD_RINGCOLL) == 0;
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
