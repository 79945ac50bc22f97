// The place of this process in the job, and how the job's ranks find each other: by Horovod's
// rendezvous server, MPI, a store named by RINGCOLL_STORE, or not at all in a job of one.
#pragma once

#include <cstdint>
#include <string>

#include "ringcoll.h"

namespace horovod {
namespace common {
struct MPIContext;
struct GlooContext;
}  // namespace common
}  // namespace horovod

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// The contexts of Horovod's other backends that this job uses; they outlive the job.
struct RingcollNeighbours {
  MPIContext* mpi = nullptr;
  GlooContext* gloo = nullptr;
};

/// A rank's place, as its launcher assigned it.
struct RingcollPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
  uint64_t host = 0;  // equal on the ranks of one host, as the launcher counts hosts
};

struct RingcollJob {
  RingcollPlace place;
  std::string name = "world";         // distinguishes communicators in one store
  std::string store;                  // empty: `exchange` is set
  rc_exchange_fn exchange = nullptr;  // over MPI
  void* exchange_state = nullptr;
};

/// The framework that this copy of the code belongs to; each has its own job.
const char* framework();
/// True if mpirun (or srun with PMI) started this process, or MPI is already initialized in it;
/// false under Horovod's rendezvous server.
bool started_by_mpi();
/// HOROVOD_GLOO_TIMEOUT_SECONDS, which an option of horovodrun sets; 0 if it or RINGCOLL_TIMEOUT_S
/// rules (0 is ringcoll's own default).
double timeout_from_environment();
/// Finds the job. `initializations` counts earlier ones of this process: from the second on, an
/// elastic job asks the rendezvous server for new ranks. Throws std::runtime_error that names what
/// is missing.
RingcollJob find_job(const RingcollNeighbours& neighbours, int initializations);

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
