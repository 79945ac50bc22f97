// Members of Horovod's process sets for the controller RINGCOLL, as MPI and Gloo have them.
#include "ringcoll_process_set.h"

#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include "../logging.h"
#include "ringcoll_context.h"

namespace horovod {
namespace common {
namespace {

// Horovod's own code for a shutdown.
constexpr int32_t kShuttingDown = -5;

/// The reasons of refused process sets, by id, until the thread that asked for a set takes its
/// reason. Guarded by the lock of the table.
std::map<int32_t, std::string>& refusals() {
  static std::map<int32_t, std::string>& reasons = *new std::map<int32_t, std::string>();
  return reasons;
}

std::string& refusal_of_this_thread() {
  static thread_local std::string reason;
  return reason;
}

}  // namespace

std::string refusal_of_any(Controller& job, const std::string& mine) {
  std::vector<int> lengths(2 * job.GetSize());
  job.Allgather2Ints({static_cast<int>(mine.size()), mine.empty()}, lengths);
  int without = 0;
  for (int rank = 0; rank < job.GetSize(); ++rank) without += lengths[2 * rank + 1];
  for (int rank = 0; rank < job.GetSize(); ++rank) {
    int length = lengths[2 * rank];
    if (length == 0) continue;
    std::string reason = rank == job.GetRank() ? mine : std::string(length, ' ');
    job.Bcast(&reason[0], length, rank, Communicator::GLOBAL);
    return without == 0 ? reason : "rank " + std::to_string(rank) + ": " + reason;
  }
  return "";
}

// Removes the set from the table again, on all ranks alike.
void ProcessSetTable::RefuseProcessSet(int32_t id, const std::string& reason) {
  LOG(ERROR) << "A process set is refused: " << reason;
  refusals()[id] = reason;
  Get(id).Finalize(Status::Aborted("The process set was refused: " + reason));
  DeregisterProcessSet(id);
}

void throw_refusal(ProcessSetTable& table) {
  std::lock_guard<std::recursive_mutex> guard(table.mutex);
  std::map<int32_t, std::string> reasons = std::exchange(refusals(), {});
  if (!reasons.empty()) throw std::runtime_error(reasons.begin()->second);
}

int32_t await_process_set(HorovodGlobalState& state, int32_t id) {
  ProcessSetTable& table = state.process_set_table;
  for (;;) {
    {
      std::lock_guard<std::recursive_mutex> guard(table.mutex);
      if (auto refused = refusals().extract(id)) {
        refusal_of_this_thread() = refused.mapped();
        return kProcessSetRefused;
      }
      if (table.Contains(id) && table.Get(id).initialization_done) return id;
    }
    if (state.shut_down) return kShuttingDown;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

const std::string& last_refusal() { return refusal_of_this_thread(); }

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
  // Without a peer there can be no agreement about removing process sets, so each rank removes them
  // alone. Tensors that still wait learn the cause.
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
