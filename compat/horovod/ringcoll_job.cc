#include "ringcoll_job.h"

#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "../logging.h"
#include "../utils/env_parser.h"
#include "ringcoll_digest.h"

#if HAVE_MPI
#define OMPI_SKIP_MPICXX
#include "../mpi/mpi_context.h"
#include "mpi.h"
#endif
#if HAVE_GLOO
#include "../gloo/http_store.h"
#endif

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {
namespace {

constexpr char kRendezvousAddress[] = "HOROVOD_GLOO_RENDEZVOUS_ADDR";
constexpr char kRendezvousPort[] = "HOROVOD_GLOO_RENDEZVOUS_PORT";

std::string text_of(const char* name, const char* otherwise = "") {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

RingcollPlace place_from_environment() {
  RingcollPlace place;
  place.rank = GetIntEnvOrDefault("HOROVOD_RANK", 0);
  place.size = GetIntEnvOrDefault("HOROVOD_SIZE", 1);
  place.local_rank = GetIntEnvOrDefault("HOROVOD_LOCAL_RANK", 0);
  place.local_size = GetIntEnvOrDefault("HOROVOD_LOCAL_SIZE", 1);
  place.cross_rank = GetIntEnvOrDefault("HOROVOD_CROSS_RANK", 0);
  place.cross_size = GetIntEnvOrDefault("HOROVOD_CROSS_SIZE", 1);
  std::string host = text_of("HOROVOD_HOSTNAME", "localhost");
  place.host = fnv1a(host.data(), host.size());
  return place;
}

// In an elastic job the launcher assigns new ranks before each initialization but the first. It
// answers when all workers have asked; only then is the server's store empty again.
void ask_for_new_ranks() {
#if HAVE_GLOO
  std::string address = text_of(kRendezvousAddress);
  std::string slot =
      text_of("HOROVOD_HOSTNAME", "localhost") + ":" + text_of("HOROVOD_LOCAL_RANK", "0");
  HTTPStore store(address, GetIntEnvOrDefault(kRendezvousPort, -1), "rank_and_size",
                  GetIntEnvOrDefault("HOROVOD_RANK", 0));
  std::vector<char> answer = store.get(slot);
  std::stringstream fields(std::string(answer.begin(), answer.end()));
  for (const char* name : {"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
                           "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"}) {
    std::string field;
    std::getline(fields, field, ',');
    if (field.empty() || field == "-1") {
      throw std::runtime_error(slot + " is no longer part of the elastic job");
    }
    SetEnv(name, field.c_str());
  }
  LOG(DEBUG) << "elastic job: " << slot << " is now rank " << text_of("HOROVOD_RANK");
#else
  throw std::runtime_error("elastic jobs need a Horovod that is built with Gloo");
#endif
}

#if HAVE_MPI
int exchange_over_mpi(void* state, const void* mine, size_t bytes, void* all) {
  auto& mpi = *static_cast<MPIContext*>(state);
  int count = static_cast<int>(bytes);
  return MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, mpi.mpi_comm) != MPI_SUCCESS;
}

RingcollJob job_over_mpi(MPIContext& mpi) {
  RingcollJob job;
  MPI_Comm_rank(mpi.mpi_comm, &job.place.rank);
  MPI_Comm_size(mpi.mpi_comm, &job.place.size);
  MPI_Comm_rank(mpi.local_comm, &job.place.local_rank);
  MPI_Comm_size(mpi.local_comm, &job.place.local_size);
  MPI_Comm_rank(mpi.cross_comm, &job.place.cross_rank);
  MPI_Comm_size(mpi.cross_comm, &job.place.cross_size);
  // The first rank of a host identifies the host.
  job.place.host = job.place.rank;
  MPI_Bcast(&job.place.host, 1, MPI_UINT64_T, 0, mpi.local_comm);
  job.exchange = exchange_over_mpi;
  job.exchange_state = &mpi;
  return job;
}
#endif

}  // namespace

const char* framework() {
#if defined(TENSORFLOW_VERSION)
  return "tensorflow";
#elif defined(PYTORCH_VERSION)
  return "torch";
#else
  return "mxnet";
#endif
}

bool started_by_mpi() {
  if (std::getenv(kRendezvousAddress) != nullptr) return false;
#if HAVE_MPI
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) return true;
#endif
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

double timeout_from_environment() {
  if (std::getenv("RINGCOLL_TIMEOUT_S") != nullptr) return 0;
  return GetDoubleEnvOrDefault("HOROVOD_GLOO_TIMEOUT_SECONDS", 0);
}

RingcollJob find_job(const RingcollNeighbours& neighbours, int initializations) {
#if HAVE_MPI
  if (neighbours.mpi != nullptr) return job_over_mpi(*neighbours.mpi);
#endif
  RingcollJob job;
  std::string address = text_of(kRendezvousAddress);
  bool elastic = GetBoolEnvOrDefault("HOROVOD_ELASTIC", false);
  // Gloo, if enabled, has already asked for this initialization.
  if (!address.empty() && elastic && initializations > 0 && neighbours.gloo == nullptr) {
    ask_for_new_ranks();
  }
  job.place = place_from_environment();
  // In an elastic job some workers are new, but the server forgets everything between rounds. In
  // other jobs all ranks initialize equally often, and the server keeps everything, so each life
  // needs its own name.
  std::string life = std::string("horovod_") + framework();
  if (!elastic) life += "_" + std::to_string(initializations);
  if (!address.empty()) {
    job.store = "horovod://" + address + ":" + text_of(kRendezvousPort) + "/ringcoll_" + life;
  } else if (!text_of("RINGCOLL_STORE").empty()) {
    job.store = text_of("RINGCOLL_STORE");
    if (life != "horovod_torch_0") job.name = life;
  } else if (job.place.size == 1) {
    job.store = "local://" + life;
  } else if (started_by_mpi()) {
    throw std::runtime_error(
        "MPI started this job but this Horovod is built without MPI. Start it by horovodrun "
        "--gloo, or build Horovod with MPI: ringcoll horovod install");
  } else {
    throw std::runtime_error("HOROVOD_SIZE is " + std::to_string(job.place.size) +
                             " but there is no way to the other ranks. Start the job by horovodrun "
                             "or mpirun, or name a store in RINGCOLL_STORE");
  }
  return job;
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
