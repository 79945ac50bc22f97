// Functions for mistakes of Horovod that all of its backends have; ringcoll/horovod/repairs.py says
// which, and calls them. The members that it adds to Horovod's classes are beside them.
#pragma once

#include <string>

#include "../process_set.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// Tells whoever waits for a tensor that it will not come, without the lock of the table: what is
/// freed then may wait for a thread that wants that lock. The queues take no more until Open().
void end_tensor_queues(ProcessSetTable& table, const Status& status);

/// A name as it stands between the quotation marks of a text in JSON.
std::string json_text(const std::string& name);

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
