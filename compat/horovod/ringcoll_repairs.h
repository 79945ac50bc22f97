// Functions that repair mistakes of Horovod which concern all its backends.
// ringcoll/horovod/repairs.py names the mistakes and adds the calls, and also adds members to
// Horovod's classes, which ringcoll_repairs.cc defines.
#pragma once

#include <string>

#include "../process_set.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// Ends all waiting tensors with `status`, without the lock of the table: freeing them may wait for
/// a thread that wants that lock. The queues accept nothing until Open().
void end_tensor_queues(ProcessSetTable& table, const Status& status);

/// Escapes a name for a JSON text; the quotation marks are not included.
std::string json_text(const std::string& name);

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
