// What it takes to go on without a rank: ringcoll_shrink <ranks> <store>
//
// A job that makes calls loses its last rank, which kills itself. The others shrink as soon as a
// call of theirs fails, and make a call of the communicator that they get. Rank 0 prints a line of
// JSON: seconds from the end of that rank to the last rank's error, from there on each rank's own
// to the end of its shrink, and from the loss to the end of the first call of all that are left.
// Each figure is that of the rank that has most.
#define _GNU_SOURCE
#include <ringcoll/ringcoll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { kMostRanks = 64, kCallsBefore = 50, kPatienceS = 60 };

/* What the ranks tell one another beside the communicator, which fails. Moments in seconds. */
struct moments {
  atomic_int ready; /* ranks whose calls before the loss have ended */
  double killed;
  double failed[kMostRanks], shrunk[kMostRanks], used[kMostRanks];
};

static int rank;

static void check(rc_status status, const char* what) {
  if (status != RC_OK) fail("ringcoll: rank %d: %s: %s", rank, what, ringcoll_error_message());
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static rc_status sum_of_ones(rc_comm* comm, double* sum) {
  *sum = 1;
  rc_buffer buffer = {sum, sum, 1};
  rc_call call = {.struct_size = sizeof call,
                  .collective = RC_ALLREDUCE,
                  .dtype = RC_FLOAT64,
                  .op = RC_SUM,
                  .buffers = &buffer,
                  .buffer_count = 1};
  return ringcoll_run(comm, &call);
}

static rc_comm* create(int size, const char* store) {
  rc_comm_options options = {
      .struct_size = sizeof options, .rank = rank, .size = size, .store = store, .name = "perf"};
  rc_comm* comm = NULL;
  check(ringcoll_comm_create(&options, &comm), "create");
  double sum;
  for (int i = 0; i < kCallsBefore; i++) check(sum_of_ones(comm, &sum), "allreduce");
  return comm;
}

/* Who is killed while another is in its last call before would spoil that. */
static void wait_for_all(int size, struct moments* when) {
  double end = now() + kPatienceS;
  while (atomic_load(&when->ready) < size) {
    if (now() > end) fail("rank %d: the others do not come", rank);
    sched_yield();
  }
}

static void survive(rc_comm* comm, int size, struct moments* when) {
  double sum;
  rc_status status = RC_OK;
  while (status == RC_OK) status = sum_of_ones(comm, &sum);
  when->failed[rank] = now();
  if (status != RC_PEER_LOST || ringcoll_error_rank() != size - 1) check(status, "after the loss");
  rc_comm* rest = NULL;
  check(ringcoll_comm_shrink(comm, "rest", &rest), "shrink");
  when->shrunk[rank] = now();
  check(sum_of_ones(rest, &sum), "allreduce of the rest");
  when->used[rank] = now();
  if (sum != size - 1) fail("rank %d: the rest are %g ranks, not %d", rank, sum, size - 1);
  ringcoll_comm_destroy(rest);
}

static double most(const double* at, const double* since, double begin, int count) {
  double longest = 0;
  for (int i = 0; i < count; i++) {
    double seconds = at[i] - (since ? since[i] : begin);
    if (seconds > longest) longest = seconds;
  }
  return longest;
}

int main(int argc, char** argv) {
  if (argc != 3) fail("usage: %s <ranks> <store>", argv[0]);
  int size = (int)parse_number(argv[1], 2, kMostRanks, "ranks");
  struct moments* when =
      mmap(NULL, sizeof *when, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (when == MAP_FAILED) fail("mmap failed");
  rank = fork_ranks(size);
  rc_comm* comm = create(size, argv[2]);
  atomic_fetch_add(&when->ready, 1);
  if (rank == size - 1) {
    wait_for_all(size, when);
    when->killed = now();
    kill(getpid(), SIGKILL);
  }
  survive(comm, size, when);
  ringcoll_comm_destroy(comm);
  join_ranks();
  if (rank != 0) return 0;
  for (int i = 0; i < size - 1; i++)
    if (when->used[i] == 0) fail("rank %d did not get to the end", i);
  printf("{\"noticed_s\": %.9f, \"shrink_s\": %.9f, \"whole_s\": %.9f}\n",
         most(when->failed, NULL, when->killed, size - 1),
         most(when->shrunk, when->failed, 0, size - 1),
         most(when->used, NULL, when->killed, size - 1));
  return 0;
}
