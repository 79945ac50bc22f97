// The functions that Horovod's operations.cc calls, from hvd.init() to the end of the job. They
// change nothing if ringcoll is neither the controller nor has the operations.
//
// Threads: hvd.init() calls ringcoll_note() and ringcoll_enable() before it starts the background
// thread, which calls all others.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "../global_state.h"
#include "../ops/collective_operations.h"
#include "ringcoll_context.h"
#include "ringcoll_operations.h"
#include "ringcoll_process_set.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// Notes the contexts of other backends that this Horovod is built with, enabled or not. Called
/// before ringcoll_enable(). They outlive all jobs.
void ringcoll_note(MPIContext& context);
void ringcoll_note(GlooContext& context);

/// Opens the library, and prepares process set 0 for the controller RINGCOLL. Returns false, and
/// logs it, if no library fits; hvd.init() may be called again.
bool ringcoll_enable(HorovodGlobalState& state, const std::vector<int>& ranks,
                     const std::vector<std::vector<int>>& process_set_ranks);

/// Gives a process set its controller if that is RINGCOLL.
void ringcoll_control(HorovodGlobalState& state, ProcessSet& process_set);

/// Gives process set 0 its MPI communicator, as the controller MPI would. Precondition: MPI is
/// initialized.
void ringcoll_prepare_mpi(HorovodGlobalState& state);

/// Joins the job, after the contexts of MPI and Gloo are initialized. Returns false, with
/// initialization_failed set, if this fails.
bool ringcoll_initialize(HorovodGlobalState& state);

/// Under the controller RINGCOLL: initializes the process sets that all ranks have registered, and
/// removes those that all have marked. Returns the number of new ones.
int32_t ringcoll_update_process_sets(HorovodGlobalState& state);

/// Keeps the error that ends this life of Horovod, under any backend, for tensors that arrive
/// later.
void ringcoll_failed(const std::exception& error);

/// Leaves the job.
void ringcoll_finalize(HorovodGlobalState& state);

/// Appends the operations over ringcoll to the lists.
void ringcoll_add_operations(HorovodGlobalState& state,
                             std::vector<std::shared_ptr<AllreduceOp>>& allreduce,
                             std::vector<std::shared_ptr<AllgatherOp>>& allgather,
                             std::vector<std::shared_ptr<BroadcastOp>>& broadcast,
                             std::vector<std::shared_ptr<AlltoallOp>>& alltoall,
                             std::vector<std::shared_ptr<ReducescatterOp>>& reducescatter,
                             std::vector<std::shared_ptr<AllreduceOp>>& adasum);

/// Called when all ranks have agreed on the work of a process set in this cycle. Under the
/// controller RINGCOLL, the time to the next cycle counts from the agreement of process set 0,
/// which is one moment for all ranks. If it counted from the beginning of a cycle by each rank's
/// clock, all would wait for the rank that begins last, and a tensor that arrives in between would
/// be a cycle late.
void ringcoll_agreed(HorovodGlobalState& state, int32_t process_set_id);

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop

// For operations.cc: the status of tensors that arrive after the end of the job tells why it ended.
#define SHUT_DOWN_ERROR RingcollContext::Get().ShutDownError()
