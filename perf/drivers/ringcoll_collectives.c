// ringcoll through its C ABI: ringcoll_collectives <harness socket> <ranks> <store>
//
// PERF_TENSORS in the environment when a way is made: its calls are of so many tensors, which lie
// one behind the other and together are the vector.
#include <errno.h>
#include <ringcoll/ringcoll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bench.h"

enum { kMostComms = 64, kLongestStore = 512, kMostTensors = 4096 };

struct way {
  rc_comm* comm;
  int64_t tensors;
};

static struct {
  int rank, size, count;
  const char* store;
  rc_collective collective;
  rc_op op;
  struct way ways[kMostComms];
} job;

static void check(rc_status status, const char* what) {
  if (status != RC_OK) fail("ringcoll: %s: %s", what, ringcoll_error_message());
}

static void barrier(void* state) {
  struct way* way = state;
  rc_call call = {.struct_size = sizeof call, .collective = RC_BARRIER};
  check(ringcoll_run(way->comm, &call), "barrier");
}

static void run(void* state, const float* input, float* output, int64_t count) {
  static rc_buffer buffers[kMostTensors];
  struct way* way = state;
  for (int64_t i = 0; i < way->tensors; i++) {
    int64_t first = count * i / way->tensors, end = count * (i + 1) / way->tensors;
    buffers[i] = (rc_buffer){input + first, output ? output + first : NULL, end - first};
  }
  rc_call call = {.struct_size = sizeof call,
                  .collective = job.collective,
                  .dtype = RC_FLOAT32,
                  .op = job.op,
                  .buffers = buffers,
                  .buffer_count = way->tensors};
  check(ringcoll_run(way->comm, &call), "run");
}

// A communicator by the knobs that the environment has now. Each meets in a folder of its own
// beside that of the first.
static void* open_comm(void* first) {
  (void)first;
  if (job.count == kMostComms) fail("more than %d communicators", kMostComms);
  char store[kLongestStore];
  int length = snprintf(store, sizeof store, "%s/%d", job.store, job.count);
  const char* folder = strchr(store, '/') + 2;
  if (length >= (int)sizeof store) fail("the store's path is too long: %s", job.store);
  if (mkdir(folder, 0700) != 0 && errno != EEXIST) fail("mkdir %s: %s", folder, strerror(errno));
  rc_comm_options options = {.struct_size = sizeof options,
                             .rank = job.rank,
                             .size = job.size,
                             .store = store,
                             .name = "perf"};
  struct way* made = &job.ways[job.count++];
  const char* tensors = getenv("PERF_TENSORS");
  made->tensors = tensors ? parse_number(tensors, 1, kMostTensors, "PERF_TENSORS") : 1;
  check(ringcoll_comm_create(&options, &made->comm), "create");
  return made;
}

static char* stats_of(void* state) {
  struct way* way = state;
  char* json = NULL;
  check(ringcoll_comm_stats(way->comm, &json), "stats");
  return json;
}

int main(int argc, char** argv) {
  static const rc_collective collectives[] = {[kAllreduce] = RC_ALLREDUCE,
                                              [kReduceScatter] = RC_REDUCE_SCATTER,
                                              [kAllgather] = RC_ALLGATHER,
                                              [kBroadcast] = RC_BROADCAST,
                                              [kAlltoall] = RC_ALLTOALL};
  if (argc != 4 || strncmp(argv[3], "file:///", 8) != 0)
    fail("usage: %s <harness socket> <ranks> file:///<directory>", argv[0]);
  job.size = (int)parse_number(argv[2], 1, 1024, "ranks");
  job.store = argv[3];
  job.collective = collectives[wanted_collective()];
  job.op = wants_average() ? RC_AVERAGE : RC_SUM;
  job.rank = fork_ranks(job.size);
  if (getenv("PERF_PIN")) pin_rank(job.rank, job.size);
  struct peer peer = {.rank = job.rank,
                      .size = job.size,
                      .state = open_comm(NULL),
                      .barrier = barrier,
                      .call = run,
                      .averages = 1,
                      .open = open_comm,
                      .describe = stats_of};
  serve(&peer, argv[1]);
  while (job.count > 0) ringcoll_comm_destroy(job.ways[--job.count].comm);
  join_ranks();
  return 0;
}
