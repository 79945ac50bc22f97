// What Horovod's operations.cc calls, from hvd.init() to the end of the job. Where ringcoll is
// neither the controller nor has the operations, the functions change nothing.
//
// Threads: ringcoll_note() and ringcoll_enable() are called by hvd.init(), before the background
// thread is started, and all others by that one.
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

/// The contexts of the other backends that this Horovod is built with, enabled or not; before
/// ringcoll_enable(). They outlive all jobs.
void ringcoll_note(MPIContext& context);
void ringcoll_note(GlooContext& context);

/// Opens the library, and prepares process set 0 for the controller RINGCOLL. False if there is no
/// library that fits, which is logged; hvd.init() may be called again.
bool ringcoll_enable(HorovodGlobalState& state, const std::vector<int>& ranks,
                     const std::vector<std::vector<int>>& process_set_ranks);

/// Gives a process set its controller, if that is RINGCOLL.
void ringcoll_control(HorovodGlobalState& state, ProcessSet& process_set);

/// Gives process set 0 its communicator of MPI, as it has one under the controller MPI. MPI has
/// been initialized.
void ringcoll_prepare_mpi(HorovodGlobalState& state);

/// Joins the job, after the contexts of MPI and Gloo. False, with initialization_failed set, if it
/// cannot.
bool ringcoll_initialize(HorovodGlobalState& state);

/// Under the controller RINGCOLL: initializes the process sets that all ranks have registered, and
/// removes what all have marked. Returns how many are new.
int32_t ringcoll_update_process_sets(HorovodGlobalState& state);

/// Keeps what ends this life of Horovod, under any backend, for tensors that come too late.
void ringcoll_failed(const std::exception& error);

/// Leaves the job.
void ringcoll_finalize(HorovodGlobalState& state);

/// The operations over ringcoll, after those that the lists have.
void ringcoll_add_operations(HorovodGlobalState& state,
                             std::vector<std::shared_ptr<AllreduceOp>>& allreduce,
                             std::vector<std::shared_ptr<AllgatherOp>>& allgather,
                             std::vector<std::shared_ptr<BroadcastOp>>& broadcast,
                             std::vector<std::shared_ptr<AlltoallOp>>& alltoall,
                             std::vector<std::shared_ptr<ReducescatterOp>>& reducescatter,
                             std::vector<std::shared_ptr<AllreduceOp>>& adasum);

/// All ranks have agreed what a process set does in this cycle. Under the controller RINGCOLL the
/// time to the next cycle is counted from the agreement of process set 0, which is one moment for
/// all: counted from the beginning of a cycle, on each rank by its own clock, all would wait for
/// the rank whose cycles begin last, and a tensor that comes in between would be a cycle late.
void ringcoll_agreed(HorovodGlobalState& state, int32_t process_set_id);

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop

// For operations.cc: tensors that come after the end of the job learn why it came.
#define SHUT_DOWN_ERROR RingcollContext::Get().ShutDownError()
