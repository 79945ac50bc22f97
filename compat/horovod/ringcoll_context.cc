#include "ringcoll_context.h"

#include <algorithm>
#include <array>
#include <exception>

#include "../controller.h"
#include "../logging.h"
#include "../process_set.h"
#include "ringcoll_cycles.h"
#include "ringcoll_digest.h"

#if HAVE_MPI
#define OMPI_SKIP_MPICXX
#include "mpi.h"
#endif

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {
namespace {

// An rc_exchange_fn over another controller of Horovod: each rank in turn broadcasts its bytes.
int exchange_over_controller(void* state, const void* mine, size_t bytes, void* all) {
  auto& controller = *static_cast<Controller*>(state);
  auto* blobs = static_cast<uint8_t*>(all);
  try {
    for (int rank = 0; rank < controller.GetSize(); ++rank) {
      uint8_t* blob = blobs + rank * bytes;
      if (rank == controller.GetRank()) std::copy_n(static_cast<const uint8_t*>(mine), bytes, blob);
      controller.Bcast(blob, bytes, rank, Communicator::GLOBAL);
    }
    return 0;
  } catch (const std::exception& error) {
    LOG(ERROR) << "ringcoll: the controller could not exchange addresses: " << error.what();
    return 1;
  }
}

std::string names_of(const std::vector<int>& ranks) {
  std::string names;
  for (int rank : ranks) names += (names.empty() ? "" : "_") + std::to_string(rank);
  return names;
}

// False if the user has chosen when cycles begin, or lets the autotuner find it.
bool cycles_may_follow_news() {
  return std::getenv(HOROVOD_CYCLE_TIME) == nullptr &&
         GetIntEnvOrDefault(HOROVOD_AUTOTUNE, 0) <= 0 &&
         !GetBoolEnvOrDefault(HOROVOD_ENABLE_XLA_OPS, false);
}

}  // namespace

RingcollCall::RingcollCall(rc_collective collective, rc_dtype dtype) {
  call.struct_size = sizeof(call);
  call.collective = collective;
  call.dtype = dtype;
}

RingcollCall& RingcollCall::Add(const void* input, void* output, int64_t count) {
  buffers.push_back({input, output, count});
  return *this;
}

RingcollContext& RingcollContext::Get() {
  // Never destroyed: Horovod's background thread may outlive static objects.
  static RingcollContext& context = *new RingcollContext();
  return context;
}

bool RingcollContext::StartedByMpi() { return started_by_mpi(); }

bool RingcollContext::MpiThreadsSupported() {
#if HAVE_MPI
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  return provided == MPI_THREAD_MULTIPLE;
#else
  return false;
#endif
}

void RingcollContext::Destroy::operator()(rc_comm* comm) const {
  RingcollLibrary::Open().comm_destroy(comm);
}

void RingcollContext::ForgetFailure() {
  std::lock_guard<std::mutex> guard(failure_mutex_);
  failure_.clear();
}

bool RingcollContext::Enable(LibType operations, LibType control) {
  job_failed_ = false;
  library_ = nullptr;
  controls_ = control == LibType::RINGCOLL;
  try {
    library_ = &RingcollLibrary::Open();
  } catch (const std::exception& error) {
    SetFailure(error.what());
    LOG(ERROR) << error.what();
    return false;
  }
  LOG(DEBUG) << "ringcoll " << library_->version() << ": operations by " << TypeName(operations)
             << ", controller " << TypeName(control);
  return true;
}

bool RingcollContext::Initialize(const RingcollNeighbours& neighbours,
                                 ProcessSetTable& process_sets) {
  neighbours_ = neighbours;
  Controller& controller = *process_sets.Get(0).controller;
  try {
    comms_[&controller].set = controls_ ? JoinJob() : CreateOver(controller);
    job_controller_ = &controller;
    if (controls_) {
      process_sets.Initialize(*this);
      RingcollCycles::Get().Begin(*library_, job_comm(), cycles_may_follow_news());
    }
    return true;
  } catch (const std::exception& error) {
    SetFailure(error.what());
    LOG(ERROR) << "Horovod could not be initialized over ringcoll: " << error.what();
    Finalize();
    Disable();
    return false;
  }
}

RingcollContext::Comm RingcollContext::JoinJob() {
  job_ = find_job(neighbours_, initializations_++);
  rc_comm_options options{};
  options.struct_size = sizeof(options);
  options.rank = job_.place.rank;
  options.size = job_.place.size;
  options.store = job_.exchange == nullptr ? job_.store.c_str() : nullptr;
  options.name = job_.name.c_str();
  options.exchange = job_.exchange;
  options.exchange_state = job_.exchange_state;
  options.timeout_s = timeout_from_environment();
  rc_comm* comm = nullptr;
  Check(library_->comm_create(&options, &comm));
  return Comm(comm);
}

void RingcollContext::Finalize() {
  RingcollCycles::Get().Close();
  comms_.clear();
  job_controller_ = nullptr;
  neighbours_ = {};
}

void RingcollContext::Release(const Controller* controller) { comms_.erase(controller); }

std::string RingcollContext::failure() const {
  std::lock_guard<std::mutex> guard(failure_mutex_);
  return failure_;
}

void RingcollContext::SetFailure(const std::string& reason) const {
  std::lock_guard<std::mutex> guard(failure_mutex_);
  if (failure_.empty()) failure_ = reason;
}

Status RingcollContext::ShutDownError() const {
  std::string reason = failure();
  if (reason.empty()) return SHUT_DOWN_ERROR;
  return Status::UnknownError(reason + ". Horovod has been shut down");
}

void RingcollContext::Check(rc_status status) const {
  if (status != RC_OK) throw std::runtime_error(library_->error_message());
}

int RingcollContext::SizeOf(const Controller& controller) const {
  return library_->comm_size(Find(controller).set.get());
}

RingcollContext::Comm RingcollContext::CreateOver(Controller& controller) const {
  rc_comm_options options{};
  options.struct_size = sizeof(options);
  options.rank = controller.GetRank();
  options.size = controller.GetSize();
  options.exchange = exchange_over_controller;
  options.exchange_state = &controller;
  options.timeout_s = timeout_from_environment();
  rc_comm* comm = nullptr;
  Check(library_->comm_create(&options, &comm));
  return Comm(comm);
}

RingcollContext::Comm RingcollContext::Split(rc_comm* parent, const std::vector<int>& ranks,
                                             const std::string& name) const {
  std::vector<int32_t> members(ranks.begin(), ranks.end());
  rc_comm* comm = nullptr;
  Check(library_->comm_split(parent, members.data(), static_cast<int32_t>(members.size()),
                             name.c_str(), &comm));
  return Comm(comm);
}

RingcollContext::Comms& RingcollContext::Find(const Controller& controller) const {
  auto found = comms_.find(&controller);
  if (found == comms_.end()) {
    throw std::logic_error("ringcoll: a process set without a communicator");
  }
  return found->second;
}

void RingcollContext::RunOn(rc_comm* comm, RingcollCall& call) const {
  call.call.buffers = call.buffers.data();
  call.call.buffer_count = static_cast<int64_t>(call.buffers.size());
  rc_status status = library_->run(comm, &call.call);
  comm == job_comm() ? CheckOnJob(status) : Check(status);
}

void RingcollContext::RunOnJob(RingcollCall call) const { RunOn(job_comm(), call); }

void RingcollContext::CheckOnJob(rc_status status) const {
  // A refused call leaves the communicator intact.
  if (status != RC_OK && status != RC_INVALID_ARGUMENT) {
    job_failed_ = true;
    SetFailure(library_->error_message());
  }
  Check(status);
}

rc_comm* RingcollContext::job_comm() const {
  auto job = comms_.find(job_controller_);
  return job != comms_.end() ? job->second.set.get() : nullptr;
}

void RingcollContext::Run(Controller& controller, RingcollCall call) const {
  RunOn(Find(controller).set.get(), call);
}

void RingcollContext::RunAmong(Controller& controller, const std::vector<int>& ranks,
                               const char* name, RingcollCall call) const {
  Comms& comms = Find(controller);
  Comm& part = comms.among[name];
  if (part == nullptr) part = Split(comms.set.get(), ranks, name);
  RunOn(part.get(), call);
}

// Compares digests, so that neither messages nor memory grow with the set or the job. One maximum
// finds both ends: the maximum of the complements is the complement of the minimum. All values are
// equal if the maximum equals the minimum.
void RingcollContext::CheckSameMembers(const ProcessSet& process_set) const {
  const std::vector<int>& ranks = process_set.registered_global_ranks;
  uint64_t size = ranks.size();
  uint64_t digest = fnv1a(ranks.data(), ranks.size() * sizeof(ranks[0]));
  std::array<uint64_t, 4> mine = {size, ~size, digest, ~digest};
  std::array<uint64_t, 4> greatest;
  RingcollCall call(RC_ALLREDUCE, RC_UINT64);
  call.call.op = RC_MAX;
  RunOnJob(call.Add(mine.data(), greatest.data(), mine.size()));
  if (greatest[0] != ~greatest[1]) {
    throw std::logic_error("The ranks register process sets of different sizes");
  }
  if (greatest[2] != ~greatest[3]) {
    throw std::logic_error("The ranks register process sets with different members");
  }
}

// All ranks of the job call this for the same process sets in the same order, so it can split the
// job's communicator. Only members get a communicator.
void RingcollContext::SplitFor(const ProcessSet& process_set) const {
  std::vector<int> ranks = process_set.registered_global_ranks;
  std::string name = "set_" + names_of(ranks);
  if (!std::count(ranks.begin(), ranks.end(), library_->comm_rank(job_comm()))) ranks.clear();
  Comm comm = Split(job_comm(), ranks, name);
  if (comm != nullptr) comms_[process_set.controller.get()].set = std::move(comm);
}

bool RingcollContext::CreateFor(ProcessSet& process_set) const {
  const Controller* controller = process_set.controller.get();
  if (!IsJob(controller)) {
    CheckSameMembers(process_set);
    SplitFor(process_set);
  }
  PrepareNeighbours(process_set);
  return comms_.count(controller) > 0;
}

void RingcollContext::CreateBeside(const ProcessSet& process_set) const {
  // Process set 0 is initialized before its communicator, which is made over its controller.
  if (!IsEnabled() || controls_ || job_comm() == nullptr) return;
  std::exception_ptr refused;
  try {
    SplitFor(process_set);
  } catch (const std::exception&) {
    refused = std::current_exception();
  }
  // Next the members of the set wait for one another in its controller, so all must know of a
  // failure.
  uint8_t all_have = refused == nullptr;
  RingcollCall call(RC_ALLREDUCE, RC_UINT8);
  call.call.op = RC_MIN;
  RunOnJob(call.Add(&all_have, &all_have, 1));
  if (refused != nullptr) std::rethrow_exception(refused);
  if (!all_have) throw RefusedElsewhere();
}

// Operations by MPI or Gloo need their contexts for the process set.
void RingcollContext::PrepareNeighbours(ProcessSet& process_set) const {
  bool is_job = IsJob(process_set.controller.get());
#if HAVE_MPI
  if (neighbours_.mpi != nullptr && !is_job) {
    process_set.mpi_context.InitializeForProcessSet(*neighbours_.mpi,
                                                    process_set.registered_global_ranks);
  }
#endif
#if HAVE_GLOO
  if (neighbours_.gloo == nullptr) return;
  if (is_job) {
    process_set.gloo_context = *neighbours_.gloo;
  } else if (neighbours_.mpi == nullptr) {
    process_set.gloo_context.InitializeForProcessSet(*neighbours_.gloo,
                                                     process_set.registered_global_ranks);
  } else {
    throw std::logic_error(
        "Process sets with operations by GLOO need a job that horovodrun --gloo has started");
  }
#endif
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
