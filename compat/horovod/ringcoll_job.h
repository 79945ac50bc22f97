// Who this process is in the job, and how the job's ranks find each other: Horovod's rendezvous
// server, MPI, a store named by RINGCOLL_STORE, or a job of one.
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

/// The contexts of Horovod's other backends, as far as this job has them; they outlive the job.
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
  std::string name = "world";         // tells communicators in one store apart
  std::string store;                  // empty: `exchange` is set
  rc_exchange_fn exchange = nullptr;  // over MPI
  void* exchange_state = nullptr;
};

/// Which framework this copy of the code is of: each has its own job.
const char* framework();
/// True if mpirun (or srun with PMI) started this process, or MPI is already initialized in it.
bool started_by_mpi();
/// HOROVOD_GLOO_TIMEOUT_SECONDS, which horovodrun sets by option, if RINGCOLL_TIMEOUT_S is not set.
double timeout_from_environment();
/// Finds the job. `initializations` counts those of this process, from 0: elastic jobs ask the
/// rendezvous server again for their ranks. Throws std::runtime_error naming what is missing.
RingcollJob find_job(const RingcollNeighbours& neighbours, int initializations);

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
