// Messages with tags between two ranks of any MPI: mpi_messages <harness socket>
//
// The same as ringcoll_messages.c, call by call.
#include <mpi.h>
#include <stdlib.h>

#include "bench.h"

enum { kMostWindow = 256, kTag = 1, kAnswerTag = 2 };

static int rank;

static void barrier(void* state) {
  (void)state;
  MPI_Barrier(MPI_COMM_WORLD);
}

static void send_one(const void* data, int bytes, int tag) {
  MPI_Send(data, bytes, MPI_BYTE, 1 - rank, tag, MPI_COMM_WORLD);
}

static void receive_one(void* data, int bytes, int tag) {
  MPI_Recv(data, bytes, MPI_BYTE, 1 - rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void ping(const float* input, float* output, int bytes) {
  if (rank == 0) send_one(input, bytes, kTag);
  receive_one(output, bytes, kTag);
  if (rank == 1) send_one(input, bytes, kTag);
}

static void half_of_window(int window, int sender, const void* input, void* output, int bytes) {
  MPI_Request requests[kMostWindow];
  char answer = 0;
  for (int i = 0; i < window; i++)
    if (rank == sender)
      MPI_Isend(input, bytes, MPI_BYTE, 1 - rank, kTag, MPI_COMM_WORLD, &requests[i]);
    else
      MPI_Irecv(output, bytes, MPI_BYTE, 1 - rank, kTag, MPI_COMM_WORLD, &requests[i]);
  MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
  if (rank == sender)
    receive_one(&answer, 1, kAnswerTag);
  else
    send_one(&answer, 1, kAnswerTag);
}

static void move(void* state, const float* input, float* output, int64_t count) {
  int window = *(int*)state;
  if (count > INT32_MAX / 4) fail("a message of MPI has at most 2^31 - 1 bytes");
  int bytes = (int)count * 4;
  if (!window) {
    ping(input, output, bytes);
    return;
  }
  half_of_window(window, 0, input, output, bytes);
  half_of_window(window, 1, input, output, bytes);
}

static void* open_way(void* first) {
  static int window;
  (void)first;
  window = (int)parse_number(getenv("PERF_WINDOW"), 1, kMostWindow, "PERF_WINDOW");
  return &window;
}

int main(int argc, char** argv) {
  int none = 0;
  struct peer peer = {
      .streams = 1, .state = &none, .barrier = barrier, .call = move, .open = open_way};
  if (argc != 2) fail("usage: mpirun -n 2 %s <harness socket>", argv[0]);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
  peer.rank = rank;
  if (peer.size != 2) fail("there are %d ranks, and messages go between two", peer.size);
  serve(&peer, argv[1]);
  MPI_Finalize();
  return 0;
}
