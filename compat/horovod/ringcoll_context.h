// The ringcoll communicators of Horovod's process sets, one for each set. Process set 0 has the
// job's communicator. The others are split off it, which costs no thread and no connection.
//
// Threads: any thread may call Enable() and the const accessors. Everything that communicates runs
// on Horovod's background thread. The first error poisons ringcoll's communicator. This class keeps
// its message, so that every tensor that fails later tells the cause.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "../common.h"
#include "../utils/env_parser.h"
#include "ringcoll_job.h"
#include "ringcoll_library.h"

namespace horovod {
namespace common {
class Controller;
class ProcessSetTable;
struct ProcessSet;
}  // namespace common
}  // namespace horovod

// Hidden visibility: horovod.torch and horovod.tensorflow each have a copy of this code with its
// own state, and one process may load both. They would share an exported vtable or variable.
#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// One call of ringcoll: a collective on buffers of one type.
struct RingcollCall {
  rc_call call{};
  std::vector<rc_buffer> buffers;

  RingcollCall(rc_collective collective, rc_dtype dtype);
  RingcollCall& Add(const void* input, void* output, int64_t count);
};

/// A process set cannot be made, and another rank has the reason.
class RefusedElsewhere : public std::exception {};

class RingcollContext {
 public:
  static RingcollContext& Get();
  static bool StartedByMpi();
  static bool MpiThreadsSupported();

  /// Opens the library. Returns false, with failure() set and logged, if no library fits.
  bool Enable(LibType operations, LibType control);
  /// For a life of Horovod over other backends.
  void Disable() { library_ = nullptr; }
  /// True from Enable() until the next one, even after the job has ended, as with other backends;
  /// false if the job was never joined.
  bool IsEnabled() const { return library_ != nullptr; }
  /// The error that ended this life of Horovod, under any backend; empty if there was none.
  std::string failure() const;
  /// Keeps the first error since ForgetFailure(); later ones are ignored.
  void SetFailure(const std::string& reason) const;
  /// Called when a life of Horovod begins.
  void ForgetFailure();
  /// The status for a tensor that arrives after the end; it tells the cause if that is known.
  Status ShutDownError() const;
  /// True if the ranks of the job can no longer communicate.
  bool JobFailed() const { return job_failed_; }

  /// Joins the job and initializes process set 0 if ringcoll is the controller. If another
  /// controller has done that, makes the communicator of process set 0 over it. Returns false, with
  /// failure() set and logged, if this fails.
  bool Initialize(const RingcollNeighbours& neighbours, ProcessSetTable& process_sets);
  /// Leaves the job; Initialize() may follow again.
  void Finalize();

  /// Makes the communicator of a process set if ringcoll is the controller. All ranks of the job
  /// call it. Returns false if this rank is not a member. Throws if the ranks disagree about the
  /// members.
  bool CreateFor(ProcessSet& process_set) const;
  /// The same under another controller, which calls it for each process set that all ranks
  /// registered alike. Does nothing for process set 0, or if ringcoll does not have the operations.
  /// Throws on all ranks if one fails.
  void CreateBeside(const ProcessSet& process_set) const;
  /// Frees the communicators of a process set, if it has any.
  void Release(const Controller* controller);

  /// Runs a call on the communicator of a process set. Throws std::runtime_error.
  void Run(Controller& controller, RingcollCall call) const;
  /// The same on some ranks of the set, all of which make this call. `name` identifies them.
  void RunAmong(Controller& controller, const std::vector<int>& ranks, const char* name,
                RingcollCall call) const;

  /// The same on the communicator of the whole job.
  void RunOnJob(RingcollCall call) const;
  /// Throws as Run() does if an operation on the job's communicator has failed.
  void CheckOnJob(rc_status status) const;

  const RingcollPlace& place() const { return job_.place; }
  /// The number of ranks of a process set. Precondition: the set has its communicator.
  int SizeOf(const Controller& controller) const;
  bool IsJob(const Controller* controller) const { return controller == job_controller_; }

 private:
  struct Destroy {
    void operator()(rc_comm* comm) const;
  };
  using Comm = std::unique_ptr<rc_comm, Destroy>;
  struct Comms {
    std::unordered_map<std::string, Comm> among;  // parts of the set: freed before `set`
    Comm set;
  };

  RingcollContext() = default;
  /// Throws std::runtime_error with ringcoll's message unless the status is RC_OK.
  void Check(rc_status status) const;
  Comm JoinJob();
  Comm CreateOver(Controller& controller) const;
  rc_comm* job_comm() const;
  Comms& Find(const Controller& controller) const;
  void SplitFor(const ProcessSet& process_set) const;
  Comm Split(rc_comm* parent, const std::vector<int>& ranks, const std::string& name) const;
  void RunOn(rc_comm* comm, RingcollCall& call) const;
  void CheckSameMembers(const ProcessSet& process_set) const;
  void PrepareNeighbours(ProcessSet& process_set) const;

  const RingcollLibrary* library_ = nullptr;
  RingcollNeighbours neighbours_;
  bool controls_ = false;
  int initializations_ = 0;
  RingcollJob job_;
  const Controller* job_controller_ = nullptr;  // of process set 0, once it has its communicator
  // By controller. Mutable, since the table of process sets passes const references.
  mutable std::unordered_map<const Controller*, Comms> comms_;
  mutable bool job_failed_ = false;
  mutable std::mutex failure_mutex_;  // user threads read, the background thread writes
  mutable std::string failure_;
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
