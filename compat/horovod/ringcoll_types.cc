#include "ringcoll_types.h"

#include <stdexcept>

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

void refuse_bfloat16_by_mpi(DataType type) {
  if (type != HOROVOD_BFLOAT16) return;
  throw std::logic_error("Reductions of type " + DataType_Name(type) +
                         " are not supported in MPI mode.");
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
