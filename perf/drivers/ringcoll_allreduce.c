// ringcoll through its C ABI: ringcoll_allreduce <harness socket> <ranks> <store>
#include <ringcoll/ringcoll.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static void check(rc_status status, const char* what) {
  if (status != RC_OK) fail("ringcoll: %s: %s", what, ringcoll_error_message());
}

static void barrier(void* state) {
  rc_call call = {.struct_size = sizeof call, .collective = RC_BARRIER};
  check(ringcoll_run(state, &call), "barrier");
}

static void allreduce(void* state, const float* input, float* output, int64_t count) {
  rc_buffer buffer = {input, output, count};
  rc_call call = {.struct_size = sizeof call,
                  .collective = RC_ALLREDUCE,
                  .dtype = RC_FLOAT32,
                  .op = RC_SUM,
                  .buffers = &buffer,
                  .buffer_count = 1};
  check(ringcoll_run(state, &call), "allreduce");
}

int main(int argc, char** argv) {
  if (argc != 4) fail("usage: %s <harness socket> <ranks> <store>", argv[0]);
  int size = (int)parse_number(argv[2], 1, 1024, "ranks");
  int rank = fork_ranks(size);
  if (getenv("PERF_PIN")) pin_rank(rank, size);
  rc_comm_options options = {
      .struct_size = sizeof options, .rank = rank, .size = size, .store = argv[3], .name = "perf"};
  rc_comm* comm = NULL;
  check(ringcoll_comm_create(&options, &comm), "create");
  serve(&(struct peer){rank, size, 0, comm, barrier, allreduce}, argv[1]);
  ringcoll_comm_destroy(comm);
  join_ranks();
  return 0;
}
