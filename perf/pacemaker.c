// The pace-maker: what an allreduce costs on one host if it does nothing that it need not.
//
//   pacemaker <harness socket> <ranks> [segment bytes [slots]]
//
// It is no library: the ranks are forked from one process, share one mapping that is laid out in
// advance, know no other dtype, operation, or failure. A vector moves in segments that stay in
// cache, through `slots` slots for each rank, in a pipeline of three stages: copy segment k into
// one's own slot; add up one's own share of segment k-1 straight from everyone's slots; copy the
// others' shares of segment k-2 out of theirs. Three counters a rank, each alone on its cache
// lines, are the whole flow control: a stage waits for the one counter of each peer that it needs.
//
// Costs: each element is read and written once on the way in, combined once, and written once on
// the way out. Only the number of segments is paid in waits.
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "drivers/bench.h"

// Fewer slots than stages would have the first stage wait for the last of its own rank.
enum { kMaxRanks = 64, kCacheLines = 128, kSpinsBeforeYield = 2000, kLeastSlots = 3 };
static const int64_t kDefaultSegmentBytes = 128 << 10;
static const int kDefaultSlots = 4;

// Each counter is written by its rank alone; its value is how many segments passed the stage,
// over all calls so far.
struct counters {
  _Alignas(kCacheLines) _Atomic int64_t packed;
  _Alignas(kCacheLines) _Atomic int64_t reduced;
  _Alignas(kCacheLines) _Atomic int64_t unpacked;
  _Alignas(kCacheLines) _Atomic int64_t arrived;
};

struct maker {
  int rank, size, slots;
  int64_t segment;  // elements
  int64_t done;     // segments of all earlier calls
  int64_t barriers;
  char* slots_base;
  struct counters* at;
};

struct span {
  int64_t first, count;
};

static void wait_for(_Atomic int64_t* counter, int64_t at_least) {
  int spins = 0;
  // acquire: pairs with the release in advance(), which follows the writes of that stage
  while (atomic_load_explicit(counter, memory_order_acquire) < at_least) {
    __builtin_ia32_pause();
    if (++spins > kSpinsBeforeYield) sched_yield();  // more ranks than idle CPUs
  }
}

static void advance(_Atomic int64_t* counter, int64_t to) {
  atomic_store_explicit(counter, to, memory_order_release);
}

static float* slot(const struct maker* m, int rank, int64_t segment) {
  int64_t index = rank * m->slots + (m->done + segment) % m->slots;
  return (float*)(m->slots_base + index * m->segment * 4);
}

static struct span share_of(int rank, int size, int64_t count) {
  int64_t first = count * rank / size;
  return (struct span){first, count * (rank + 1) / size - first};
}

static void add(float* restrict into, const float* restrict from, int64_t count) {
  for (int64_t i = 0; i < count; i++) into[i] += from[i];
}

static void pack(struct maker* m, const float* input, int64_t k, int64_t count) {
  for (int r = 0; r < m->size; r++) wait_for(&m->at[r].unpacked, m->done + k - m->slots + 1);
  memcpy(slot(m, m->rank, k), input + k * m->segment, (size_t)count * 4);
  advance(&m->at[m->rank].packed, m->done + k + 1);
}

static void reduce(struct maker* m, float* output, int64_t k, int64_t count) {
  struct span share = share_of(m->rank, m->size, count);
  float* mine = slot(m, m->rank, k) + share.first;
  for (int r = 0; r < m->size; r++) {
    if (r == m->rank) continue;
    wait_for(&m->at[r].packed, m->done + k + 1);
    add(mine, slot(m, r, k) + share.first, share.count);
  }
  memcpy(output + k * m->segment + share.first, mine, (size_t)share.count * 4);
  advance(&m->at[m->rank].reduced, m->done + k + 1);
}

static void unpack(struct maker* m, float* output, int64_t k, int64_t count) {
  for (int r = 0; r < m->size; r++) {
    if (r == m->rank) continue;
    struct span share = share_of(r, m->size, count);
    wait_for(&m->at[r].reduced, m->done + k + 1);
    memcpy(output + k * m->segment + share.first, slot(m, r, k) + share.first,
           (size_t)share.count * 4);
  }
  advance(&m->at[m->rank].unpacked, m->done + k + 1);
}

static int64_t segment_count(const struct maker* m, int64_t k, int64_t count) {
  int64_t left = count - k * m->segment;
  return left < m->segment ? left : m->segment;
}

static void allreduce(void* state, const float* input, float* output, int64_t count) {
  struct maker* m = state;
  int64_t segments = (count + m->segment - 1) / m->segment;
  for (int64_t k = 0; k < segments + 2; k++) {
    if (k < segments) pack(m, input, k, segment_count(m, k, count));
    if (k >= 1 && k <= segments) reduce(m, output, k - 1, segment_count(m, k - 1, count));
    if (k >= 2) unpack(m, output, k - 2, segment_count(m, k - 2, count));
  }
  m->done += segments;
}

static void barrier(void* state) {
  struct maker* m = state;
  advance(&m->at[m->rank].arrived, ++m->barriers);
  for (int r = 0; r < m->size; r++) wait_for(&m->at[r].arrived, m->barriers);
}

static void* share_memory(size_t bytes) {
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no shared mapping of %zu bytes", bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);  // refused where shmem has none: nothing lost
  memset(memory, 0, bytes);
  return memory;
}

int main(int argc, char** argv) {
  if (argc < 3 || argc > 5) fail("usage: %s <harness socket> <ranks> [segment [slots]]", argv[0]);
  struct maker m = {.slots = kDefaultSlots, .segment = kDefaultSegmentBytes / 4};
  m.size = (int)parse_number(argv[2], 1, kMaxRanks, "ranks");
  if (argc > 3) m.segment = parse_number(argv[3], 4, 1 << 30, "segment bytes") / 4;
  if (argc > 4) m.slots = (int)parse_number(argv[4], kLeastSlots, 1024, "slots");
  m.slots_base = share_memory((size_t)m.size * (size_t)m.slots * (size_t)m.segment * 4);
  m.at = share_memory((size_t)m.size * sizeof(struct counters));
  m.rank = fork_ranks(m.size);
  pin_rank(m.rank, m.size);
  serve(&(struct peer){m.rank, m.size, 0, &m, barrier, allreduce}, argv[1]);
  join_ranks();
  return 0;
}
