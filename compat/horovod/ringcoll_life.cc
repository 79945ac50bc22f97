#include "ringcoll_life.h"

#include <chrono>

#include "ringcoll_adasum.h"
#include "ringcoll_controller.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {
namespace {

RingcollNeighbours built_with;

bool controls(const HorovodGlobalState& state) {
  return state.control_operation == LibType::RINGCOLL;
}

RingcollNeighbours enabled() {
  RingcollNeighbours found;
#if HAVE_MPI
  if (built_with.mpi->IsEnabled()) found.mpi = built_with.mpi;
#endif
#if HAVE_GLOO
  if (built_with.gloo->IsEnabled()) found.gloo = built_with.gloo;
#endif
  return found;
}

}  // namespace

void ringcoll_note(MPIContext& context) { built_with.mpi = &context; }

void ringcoll_note(GlooContext& context) { built_with.gloo = &context; }

bool ringcoll_enable(HorovodGlobalState& state, const std::vector<int>& ranks,
                     const std::vector<std::vector<int>>& process_set_ranks) {
  RingcollContext& context = RingcollContext::Get();
  context.ForgetFailure();
  if (state.cpu_operation != LibType::RINGCOLL && !controls(state)) {
    context.Disable();
    return true;
  }
  state.initialization_failed = false;
  if (!context.Enable(state.cpu_operation, state.control_operation)) {
    state.initialize_flag.clear();
    return false;
  }
  if (!controls(state)) return true;
#if HAVE_MPI
  if (RingcollContext::StartedByMpi()) built_with.mpi->Enable(ranks);
#endif
  ProcessSet& global_process_set = state.process_set_table.Get(0);
  ringcoll_control(state, global_process_set);
  state.global_controller = global_process_set.controller;
  state.process_set_ranks_to_register = process_set_ranks;
  return true;
}

void ringcoll_control(HorovodGlobalState& state, ProcessSet& process_set) {
  if (!controls(state)) return;
  process_set.controller.reset(new RingcollController(
      process_set.response_cache, process_set.tensor_queue, state.timeline, state.parameter_manager,
      process_set.group_table, state.timeline_controller));
}

void ringcoll_prepare_mpi(HorovodGlobalState& state) {
#if HAVE_MPI
  if (!controls(state)) return;
  state.process_set_table.Get(0).mpi_context.InitializeForProcessSet(*built_with.mpi, {});
#endif
}

bool ringcoll_initialize(HorovodGlobalState& state) {
  RingcollContext& context = RingcollContext::Get();
  if (!context.IsEnabled()) return true;
  state.initialization_failed = !context.Initialize(enabled(), state.process_set_table);
  return !state.initialization_failed;
}

void ringcoll_failed(const std::exception& error) {
  RingcollContext::Get().SetFailure(error.what());
}

int32_t ringcoll_update_process_sets(HorovodGlobalState& state) {
  if (!controls(state)) return 0;
  return state.process_set_table.InitializeRegisteredAndRemoveMarkedIfReady(RingcollContext::Get());
}

void ringcoll_finalize(HorovodGlobalState& state) {
  RingcollContext& context = RingcollContext::Get();
  if (controls(state)) state.process_set_table.Finalize(context, context.ShutDownError());
  context.Finalize();
}

void ringcoll_add_operations(HorovodGlobalState& state,
                             std::vector<std::shared_ptr<AllreduceOp>>& allreduce,
                             std::vector<std::shared_ptr<AllgatherOp>>& allgather,
                             std::vector<std::shared_ptr<BroadcastOp>>& broadcast,
                             std::vector<std::shared_ptr<AlltoallOp>>& alltoall,
                             std::vector<std::shared_ptr<ReducescatterOp>>& reducescatter,
                             std::vector<std::shared_ptr<AllreduceOp>>& adasum) {
  if (state.cpu_operation != LibType::RINGCOLL) return;
  allreduce.push_back(std::make_shared<RingcollAllreduce>(&state));
  allgather.push_back(std::make_shared<RingcollAllgather>(&state));
  broadcast.push_back(std::make_shared<RingcollBroadcast>(&state));
  alltoall.push_back(std::make_shared<RingcollAlltoall>(&state));
  reducescatter.push_back(std::make_shared<RingcollReducescatter>(&state));
  adasum.push_back(std::make_shared<RingcollAdasum>(&state));
}

void ringcoll_agreed(HorovodGlobalState& state, int32_t process_set_id) {
  if (process_set_id != 0 || !controls(state)) return;
  state.last_cycle_start = std::chrono::steady_clock::now();
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
