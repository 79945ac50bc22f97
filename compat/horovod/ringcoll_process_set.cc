// The members of Horovod's process sets for the controller RINGCOLL, as there are for MPI and Gloo.
#include <numeric>

#include "../controller.h"
#include "../logging.h"
#include "../process_set.h"
#include "ringcoll_context.h"

namespace horovod {
namespace common {

bool ProcessSet::Initialize(const RingcollContext& context) {
  if (initialization_done) return false;
  if (context.CreateFor(*this)) controller->Initialize();
  if (registered_global_ranks.empty()) {
    registered_global_ranks.resize(context.place().size);
    std::iota(registered_global_ranks.begin(), registered_global_ranks.end(), 0);
  }
  initialization_done = true;
  return true;
}

void ProcessSetTable::Initialize(const RingcollContext& context) { Initialize_(context); }

int32_t ProcessSetTable::InitializeRegisteredAndRemoveMarkedIfReady(const RingcollContext& context,
                                                                    const Status& removal_status) {
  return InitializeRegisteredAndRemoveMarkedIfReady_(context, removal_status);
}

void ProcessSetTable::Finalize(const RingcollContext& context, const Status& status) {
  if (!context.JobFailed()) {
    try {
      Finalize_(context, status);
      return;
    } catch (const std::exception& error) {
      LOG(ERROR) << "ringcoll: lost the other ranks while shutting down: " << error.what();
    }
  }
  // With a peer gone there is nobody to agree with about removing process sets: each rank alone.
  // The tensors that still wait learn the cause.
  std::lock_guard<std::recursive_mutex> guard(mutex);
  for (int32_t id : Ids()) {
    Get(id).Finalize(context.ShutDownError());
    if (id != 0) DeregisterProcessSet(id);
  }
  next_id_ = 1;
  free_ids_ = {};
  id_to_be_removed_ = NO_PENDING_REMOVAL;
}

}  // namespace common
}  // namespace horovod
