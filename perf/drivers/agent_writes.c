// One-sided writes of ringcoll's agents: both ranks write a buffer into the other's region at the
// same time, and wait for the other's notice. The same bytes pass as in verbs_stream.c:
// agent_writes <harness socket> <ranks>
//
// "describe" measures one direction instead: rank 0 writes and reads kOneWayBytes of rank 1, which
// only waits, and says what each process has used of a processor meanwhile.
#include <ringcoll/remote.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "bench.h"

enum { kHandleBytes = 1024, kOneWayBytes = 64 << 20, kOneWayRounds = 4 };
static const double kLimit = 120;

// What the ranks tell each other, in memory that they share.
struct side {
  char handle[kHandleBytes];
  size_t handle_bytes;
  _Atomic uint64_t steps;
};

struct writes {
  int rank;
  struct side* sides;  // of both ranks
  uint64_t steps;
  rc_agent* agent;
  rc_region* region;
  const float* output;
  size_t bytes;
  rc_remote* theirs;
};

static void check(rc_status status, const char* what) {
  if (status != RC_OK) fail("ringcoll: %s: %s", what, ringcoll_error_message());
}

// Both have come this far.
static void meet(struct writes* w) {
  atomic_store(&w->sides[w->rank].steps, ++w->steps);
  while (atomic_load(&w->sides[1 - w->rank].steps) < w->steps) continue;
}

static void barrier(void* state) { meet(state); }

static void share(struct writes* w, float* output, size_t bytes) {
  struct side *mine = &w->sides[w->rank], *theirs = &w->sides[1 - w->rank];
  check(ringcoll_region_close(w->region, kLimit), "close");
  ringcoll_detach(w->theirs);
  check(ringcoll_register(w->agent, output, bytes, 1, &w->region), "register");
  mine->handle_bytes = kHandleBytes;
  check(ringcoll_region_handle(w->region, mine->handle, &mine->handle_bytes), "handle");
  meet(w);
  check(ringcoll_attach(theirs->handle, theirs->handle_bytes, &w->theirs), "attach");
  w->output = output;
  w->bytes = bytes;
  meet(w);
}

static void copy(struct writes* w, void* local, size_t bytes, int is_write) {
  rc_source source = {.region = w->theirs};
  rc_copy one = {.local = local,
                 .bytes = bytes,
                 .sources = &source,
                 .source_count = 1,
                 .writes = is_write,
                 .has_notice = is_write,
                 .notice = 1};
  rc_copies copies = {
      .struct_size = sizeof copies, .copies = &one, .count = 1, .timeout_s = kLimit};
  check(ringcoll_copy(w->agent, &copies), "copy");
}

// A call: all of the input to the peer's output, and all of the peer's here.
static void exchange(void* state, const float* input, float* output, int64_t count) {
  struct writes* w = state;
  size_t bytes = (size_t)count * sizeof *input;
  if (w->output != output || w->bytes != bytes) share(w, output, bytes);
  copy(w, (void*)input, bytes, 1);
  uint64_t notice;
  check(ringcoll_region_notice(w->region, kLimit, &notice), "notice");
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double processor_seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// Rank 1 sleeps until rank 0's last notice.
static void one_way(struct writes* w, void* local, int is_write) {
  uint64_t notice;
  for (int i = 0; i < kOneWayRounds && w->rank == 0; i++) copy(w, local, kOneWayBytes, is_write);
  if (w->rank == 0 && !is_write) copy(w, local, 4, 1);
  for (int i = 0; w->rank == 1 && i < (is_write ? kOneWayRounds : 1); i++)
    check(ringcoll_region_notice(w->region, kLimit, &notice), "notice");
}

static char* describe(void* state) {
  struct writes* w = state;
  void *memory, *local;
  check(ringcoll_allocate(kOneWayBytes, &memory), "allocate");
  check(ringcoll_allocate(kOneWayBytes, &local), "allocate");
  share(w, memory, kOneWayBytes);
  double seconds[2], used[2];
  for (int is_write = 0; is_write < 2; is_write++) {
    memset(local, 1, kOneWayBytes);
    one_way(w, local, is_write);  // which registers
    meet(w);
    double began = now(), before = processor_seconds();
    one_way(w, local, is_write);
    seconds[is_write] = now() - began;
    used[is_write] = processor_seconds() - before;
    meet(w);
  }
  check(ringcoll_region_close(w->region, kLimit), "close");
  w->region = NULL;
  w->output = NULL;
  check(ringcoll_release(memory), "release");
  check(ringcoll_release(local), "release");
  char *text = NULL, *stats = NULL;
  check(ringcoll_agent_stats(w->agent, &stats), "stats");
  if (asprintf(&text,
               "{\"bytes\": %lld, \"read_s\": %.6f, \"read_cpu_s\": %.6f, \"write_s\": %.6f, "
               "\"write_cpu_s\": %.6f, \"stats\": %s}",
               (long long)kOneWayBytes * kOneWayRounds, seconds[0], used[0], seconds[1], used[1],
               stats) < 0)
    fail("no memory");
  ringcoll_free(stats);
  return text;
}

int main(int argc, char** argv) {
  if (argc != 3) fail("usage: %s <harness socket> <ranks>", argv[0]);
  parse_number(argv[2], 2, 2, "ranks");
  struct writes writes = {0};
  writes.sides = mmap(NULL, 2 * sizeof(struct side), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (writes.sides == MAP_FAILED) fail("no shared memory");
  writes.rank = fork_ranks(2);
  // Each as if on a host of its own, so that neither maps the other's memory.
  setenv("RINGCOLL_HOSTID", writes.rank == 0 ? "perf-0" : "perf-1", 1);
  check(ringcoll_agent_open(NULL, &writes.agent), "open");
  char* addresses;
  check(ringcoll_agent_admit(writes.agent, "perf", "key", 0, &addresses), "admit");
  ringcoll_free(addresses);
  struct peer peer = {.rank = writes.rank,
                      .size = 2,
                      .streams = 1,
                      .state = &writes,
                      .barrier = barrier,
                      .call = exchange,
                      .describe = describe};
  serve(&peer, argv[1]);
  check(ringcoll_region_close(writes.region, kLimit), "close");
  ringcoll_detach(writes.theirs);
  ringcoll_agent_close(writes.agent);
  join_ranks();
  return 0;
}
