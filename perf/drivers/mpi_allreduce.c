// Any MPI, started by its own launcher: mpi_allreduce <harness socket>
#include <mpi.h>

#include "bench.h"

// MPI counts are int: more elements than this would need several calls.
static const int64_t kMostElements = INT32_MAX;

static void barrier(void* state) {
  (void)state;
  MPI_Barrier(MPI_COMM_WORLD);
}

static void allreduce(void* state, const float* input, float* output, int64_t count) {
  (void)state;
  if (count > kMostElements) fail("MPI_Allreduce takes at most 2^31 - 1 elements");
  MPI_Allreduce(input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  struct peer peer = {.barrier = barrier, .allreduce = allreduce};
  if (argc != 2) fail("usage: mpirun ... %s <harness socket>", argv[0]);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
  serve(&peer, argv[1]);
  MPI_Finalize();
  return 0;
}
