// Tensor types that Horovod's other backends lack.
#pragma once

#include "../common.h"
#include "../message.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// Throws std::logic_error for bfloat16, which MPI can move but not reduce.
void refuse_bfloat16_by_mpi(DataType type);

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
