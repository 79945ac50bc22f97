// Any MPI, started by its own launcher: mpi_collectives <harness socket>
#include <mpi.h>

#include "bench.h"

static void barrier(void* state) {
  (void)state;
  MPI_Barrier(MPI_COMM_WORLD);
}

// MPI counts are int: more elements than this would need several calls.
static int count_of(int64_t count) {
  if (count > INT32_MAX) fail("MPI takes at most 2^31 - 1 elements");
  return (int)count;
}

static void allreduce(void* state, const float* input, float* output, int64_t count) {
  (void)state;
  MPI_Allreduce(input, output, count_of(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(void* state, const float* input, float* output, int64_t count) {
  (void)state;
  MPI_Reduce_scatter_block(input, output, count_of(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void allgather(void* state, const float* input, float* output, int64_t count) {
  int n = count_of(count);
  (void)state;
  MPI_Allgather(input, n, MPI_FLOAT, output, n, MPI_FLOAT, MPI_COMM_WORLD);
}

// One buffer: what the root sends, what the others receive.
static void broadcast(void* state, const float* input, float* output, int64_t count) {
  (void)state;
  MPI_Bcast(output ? output : (float*)input, count_of(count), MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void alltoall(void* state, const float* input, float* output, int64_t count) {
  int n = count_of(count);
  (void)state;
  MPI_Alltoall(input, n, MPI_FLOAT, output, n, MPI_FLOAT, MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  static void (*const calls[])(void*, const float*, float*, int64_t) = {
      [kAllreduce] = allreduce,
      [kReduceScatter] = reduce_scatter,
      [kAllgather] = allgather,
      [kBroadcast] = broadcast,
      [kAlltoall] = alltoall};
  struct peer peer = {.barrier = barrier, .call = calls[wanted_collective()]};
  if (argc != 2) fail("usage: mpirun ... %s <harness socket>", argv[0]);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
  serve(&peer, argv[1]);
  MPI_Finalize();
  return 0;
}
