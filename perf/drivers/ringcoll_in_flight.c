// A vector in several allreduces: ringcoll_in_flight <harness socket> <ranks> <store>
//
// A way (bench.h) says in how many calls a vector is summed, and how they are made:
//
//   PERF_CALLS   how many, all of one length
//   PERF_START   not 0: all are started, then all are waited for; 0: each is run to its end
//   PERF_GROUPS  0: on the communicator of the job; else on so many groups of all ranks, in turn
//
// The way that is there from the start is one call, which is run.
#include <ringcoll/ringcoll.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { kMostWays = 16, kMostCalls = 64, kMostGroups = 4 };

struct division {
  int calls, started, groups;
  rc_comm* comms[kMostGroups];  // of the job, if there are no groups
};

static struct {
  int rank, size, count;
  rc_comm* whole;
  struct division divisions[kMostWays];
} job;

static void check(rc_status status, const char* what) {
  if (status != RC_OK) fail("ringcoll: rank %d: %s: %s", job.rank, what, ringcoll_error_message());
}

static void barrier(void* state) {
  (void)state;
  rc_call call = {.struct_size = sizeof call, .collective = RC_BARRIER};
  check(ringcoll_run(job.whole, &call), "barrier");
}

static rc_comm* comm_of(const struct division* d, int i) {
  return d->comms[d->groups ? i % d->groups : 0];
}

// The i-th call sums the i-th of equal parts. The request is NULL where it has ended.
static rc_request* call(const struct division* d, int i, rc_buffer vector) {
  int64_t first = vector.count * i / d->calls;
  rc_buffer buffer = {(const float*)vector.input + first, (float*)vector.output + first,
                      vector.count * (i + 1) / d->calls - first};
  rc_call call = {.struct_size = sizeof call,
                  .collective = RC_ALLREDUCE,
                  .dtype = RC_FLOAT32,
                  .op = RC_SUM,
                  .buffers = &buffer,
                  .buffer_count = 1};
  rc_request* request = NULL;
  if (d->started)
    check(ringcoll_start(comm_of(d, i), &call, &request), "start");
  else
    check(ringcoll_run(comm_of(d, i), &call), "allreduce");
  return request;
}

static void allreduce(void* state, const float* input, float* output, int64_t count) {
  const struct division* d = state;
  rc_request* requests[kMostCalls];
  for (int i = 0; i < d->calls; i++) requests[i] = call(d, i, (rc_buffer){input, output, count});
  for (int i = 0; i < d->calls && d->started; i++) {
    int done = 0;
    check(ringcoll_wait(requests[i], -1, &done), "wait");
    ringcoll_request_free(requests[i]);
  }
}

static rc_comm* split(void) {
  int32_t* ranks = calloc((size_t)job.size, sizeof *ranks);
  rc_comm* made = NULL;
  if (!ranks) fail("no memory for %d ranks", job.size);
  for (int i = 0; i < job.size; i++) ranks[i] = i;
  check(ringcoll_comm_split(job.whole, ranks, job.size, "part", &made), "split");
  free(ranks);
  return made;
}

static int setting(const char* name, int64_t least, int64_t most) {
  return (int)parse_number(getenv(name), least, most, name);
}

static void* open_division(void* first) {
  (void)first;
  if (job.count == kMostWays) fail("more than %d ways", kMostWays);
  struct division* made = &job.divisions[job.count++];
  made->calls = setting("PERF_CALLS", 1, kMostCalls);
  made->started = setting("PERF_START", 0, 1);
  made->groups = setting("PERF_GROUPS", 0, kMostGroups);
  made->comms[0] = job.whole;
  for (int i = 0; i < made->groups; i++) made->comms[i] = split();
  return made;
}

static void create(const char* store) {
  rc_comm_options options = {.struct_size = sizeof options,
                             .rank = job.rank,
                             .size = job.size,
                             .store = store,
                             .name = "perf"};
  check(ringcoll_comm_create(&options, &job.whole), "create");
  job.divisions[job.count++] = (struct division){.calls = 1, .comms = {job.whole}};
}

static void destroy(void) {
  while (job.count > 0) {
    const struct division* d = &job.divisions[--job.count];
    for (int i = 0; i < d->groups; i++) ringcoll_comm_destroy(d->comms[i]);
  }
  ringcoll_comm_destroy(job.whole);
}

int main(int argc, char** argv) {
  if (argc != 4 || strncmp(argv[3], "file:///", 8) != 0)
    fail("usage: %s <harness socket> <ranks> file:///<directory>", argv[0]);
  job.size = (int)parse_number(argv[2], 1, 1024, "ranks");
  job.rank = fork_ranks(job.size);
  create(argv[3]);
  struct peer peer = {.rank = job.rank,
                      .size = job.size,
                      .state = &job.divisions[0],
                      .barrier = barrier,
                      .call = allreduce,
                      .open = open_division};
  serve(&peer, argv[1]);
  destroy();
  join_ranks();
  return 0;
}
