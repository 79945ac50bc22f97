// How far apart two cores are: core_round_trip [batches]
//
// Prints the nanoseconds that a cache line takes from the first usable CPU to the second and back:
// the median of the batches of 1,000 round trips (0.1 to 0.5 ms each). What ranks of one host cost
// each other follows it, and on a virtual machine it may change while one measures.
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "bench.h"

enum { kTrips = 1000, kBatches = 101, kMostBatches = 100000 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// `turn` is even when it is rank 0's. Nothing else is shared, so that no order is needed.
static void make_trips(int rank, _Atomic int64_t* turn, int64_t first) {
  for (int64_t at = first + rank; at < first + 2 * kTrips; at += 2) {
    while (atomic_load_explicit(turn, memory_order_relaxed) != at) __builtin_ia32_pause();
    atomic_store_explicit(turn, at + 1, memory_order_relaxed);
  }
}

static int compare(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  if (argc > 2) fail("usage: core_round_trip [batches]");
  int batches = kBatches;
  if (argc == 2) batches = (int)parse_number(argv[1], 1, kMostBatches, "batches");
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2)
    fail("core_round_trip: fewer than two CPUs may be used");
  _Atomic int64_t* turn =
      mmap(NULL, sizeof *turn, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (turn == MAP_FAILED) fail("core_round_trip: no memory");
  int rank = fork_ranks(2);
  pin_rank(rank, 2);
  double* seconds = calloc((size_t)batches, sizeof *seconds);
  if (!seconds) fail("core_round_trip: no memory");
  for (int batch = 0; batch < batches; batch++) {
    double begun = now();
    make_trips(rank, turn, (int64_t)batch * 2 * kTrips);
    seconds[batch] = (now() - begun) / kTrips;
  }
  if (rank != 0) return 0;
  qsort(seconds, (size_t)batches, sizeof *seconds, compare);
  printf("%.1f\n", seconds[batches / 2] * 1e9);
  join_ranks();
  return 0;
}
