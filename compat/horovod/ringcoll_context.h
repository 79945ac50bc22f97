// The communicators of ringcoll that Horovod's process sets use, one for each set: process set 0's
// is the job's, and all others are split off that, which costs no thread and no connection.
//
// Threads: Enable() and the questions are for any thread; all that communicates happens on
// Horovod's background thread. The first error poisons ringcoll's communicator; its message is
// kept here, so that every tensor that fails afterwards says why.
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

// Hidden: horovod.torch and horovod.tensorflow each have a copy of this code with its own state,
// and both can be loaded into one process. A vtable or a variable that is exported would be shared.
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

/// Another rank has the reason why a process set cannot be had.
class RefusedElsewhere : public std::exception {};

class RingcollContext {
 public:
  static RingcollContext& Get();
  static bool StartedByMpi();
  static bool MpiThreadsSupported();

  /// Opens the library. False, with failure() set and logged, if there is none that fits.
  bool Enable(LibType operations, LibType control);
  /// For a life of Horovod over other backends.
  void Disable() { library_ = nullptr; }
  /// From Enable() until the next one, the end of the job notwithstanding, as the other backends
  /// have it: but not if the job was never joined.
  bool IsEnabled() const { return library_ != nullptr; }
  /// What ended this life of Horovod, under any backend; empty if nothing did.
  std::string failure() const;
  /// The first one since ForgetFailure() is kept.
  void SetFailure(const std::string& reason) const;
  /// A life begins.
  void ForgetFailure();
  /// What a tensor is told that comes after the end: why it came, if that is known.
  Status ShutDownError() const;
  /// True if the ranks of the job can no longer talk to one another.
  bool JobFailed() const { return job_failed_; }

  /// Where ringcoll is the controller: joins the job and initializes process set 0. Where another
  /// is, and has done so: makes the communicator of process set 0 over that. False, with failure()
  /// set and logged, if it cannot.
  bool Initialize(const RingcollNeighbours& neighbours, ProcessSetTable& process_sets);
  /// Leaves the job; Initialize() may follow again.
  void Finalize();

  /// Gives a process set its communicator, where ringcoll is the controller: all ranks of the job
  /// call it. False if this rank is not a member. Throws if the ranks disagree about the members.
  bool CreateFor(ProcessSet& process_set) const;
  /// The same where another controller is, which calls it for each process set that the ranks have
  /// found to be the same on all: nothing if ringcoll has not the operations, or for process set 0.
  /// Throws on all ranks if one cannot.
  void CreateBeside(const ProcessSet& process_set) const;
  /// Frees the communicators of a process set, if it has any.
  void Release(const Controller* controller);

  /// Runs a call on the communicator of a process set. Throws std::runtime_error.
  void Run(Controller& controller, RingcollCall call) const;
  /// The same on the ranks of the set that are listed, which all make this call.
  void RunAmong(Controller& controller, const std::vector<int>& ranks, const char* name,
                RingcollCall call) const;

  /// The same on the communicator of the whole job.
  void RunOnJob(RingcollCall call) const;
  /// Throws as Run() does if what was asked of the job's communicator has failed.
  void CheckOnJob(rc_status status) const;

  const RingcollPlace& place() const { return job_.place; }
  /// Ranks of a process set that has its communicator.
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
  // The side table of process sets. Mutable, as the process set table hands out const references.
  mutable std::unordered_map<const Controller*, Comms> comms_;
  mutable bool job_failed_ = false;
  mutable std::mutex failure_mutex_;  // user threads ask, the background thread tells
  mutable std::string failure_;
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
