// The pace-maker: what an allreduce costs on one host if it does nothing that it need not.
//
//   pacemaker <harness socket> <ranks> [segment bytes [slots]]
//
// It is no library: the ranks are forked from one process, share one mapping that is laid out in
// advance, know no other dtype, operation, or failure. A vector moves in segments that stay in
// cache, through places of each rank's memory that are turned through, in a pipeline. Four counters
// a rank, each alone on its cache lines, are the whole flow control.
//
// There are ways to do it (drivers/bench.h, "use"), of which now one, now the other is the fastest:
// which depends on the size and on how far apart the cores are. So the limit is the best of them.
//   PERF_EXCHANGE=shares   (as if not set) pack for each peer its share of the vector; add up one's
//                          own share from one's input and the peers' memory; copy theirs from them.
//   PERF_EXCHANGE=whole    two ranks: pack all, and add the other's to one's own: one step
//   PERF_EXCHANGE=handed   the same in one place of each rank, which the ranks exchange with every
//                          segment: what is written next is what was read last
//   PERF_EXCHANGE=read     two ranks: each reads the other's input from that rank's own memory
//                          (process_vm_readv), and adds it to its own: nothing is packed
//   PERF_EXCHANGE=read-shares  two ranks: the same of one's share; the other one is then read from
//                          the other's output
//   PERF_EXCHANGE=copy     the bound: copy the vector from own memory to own memory. Each rank of
//                          an allreduce reads and writes as much, and cannot be faster.
//   PERF_STORES=past       what peers read is stored past the caches
//   PERF_OUTPUT=past       what is stored into the output is
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "drivers/bench.h"

// Fewer slots than stages would have the first stage wait for the last of its own rank.
enum {
  kMaxRanks = 64,
  kCacheLines = 128,
  kSpinsBeforeYield = 2000,
  kLeastSlots = 3,
  kMostWays = 16
};
enum { kBlock = 4096 };       // floats: in the first-level cache
enum { kReadBlock = 16384 };  // floats: of one system call, in the second-level cache
static const int64_t kDefaultSegmentBytes = 128 << 10;
// Memory of a rank that is turned through: more than two second-level caches hold.
static const int64_t kTurnBytes = 4 << 20;
static const int64_t kPlaceAlignment = 4096;

// Each counter is written by its rank alone; its value is how many segments passed the stage,
// over all calls so far.
struct counters {
  _Alignas(kCacheLines) _Atomic int64_t packed;
  _Alignas(kCacheLines) _Atomic int64_t reduced;
  _Alignas(kCacheLines) _Atomic int64_t unpacked;
  _Alignas(kCacheLines) _Atomic int64_t arrived;
  // For who reads this rank's memory: written before `packed`, which says that they are there.
  pid_t pid;
  const float *input, *output;
};

enum exchange { kShares, kWhole, kHanded, kRead, kReadShares, kCopy };

struct maker {
  int rank, size, most_slots;
  int64_t segment;  // elements
  int64_t turn;     // bytes of a rank
  char* memory;
  struct counters* at;  // of each rank
  enum exchange exchange;
  int stores_past, output_past;
  int64_t stride;  // bytes from place to place
  int64_t slots;   // places
  int64_t done;    // segments of all earlier calls
  int64_t barriers;
};

struct span {
  int64_t first, count;
};

static struct counters* counters_of_ways;
static int ways_made;

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
  return (float*)(m->memory + rank * m->turn + (m->done + segment) % m->slots * m->stride);
}

static struct span share_of(int rank, int size, int64_t count) {
  int64_t first = count * rank / size;
  return (struct span){first, count * (rank + 1) / size - first};
}

// What is left of `count` floats behind those that were stored past the caches.
#if defined(__AVX__)
static int64_t lead_to_alignment(const float* to, int64_t count) {
  int64_t lead = (int64_t)(-((uintptr_t)to / 4) % 8);
  return lead < count ? lead : count;
}
#endif

static void copy(float* to, const float* from, int64_t count, int past) {
#if defined(__AVX__)
  if (past) {
    int64_t i = lead_to_alignment(to, count);
    memcpy(to, from, (size_t)i * 4);
    for (; i + 8 <= count; i += 8) _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
    memcpy(to + i, from + i, (size_t)(count - i) * 4);
    _mm_sfence();
    return;
  }
#endif
  (void)past;
  memcpy(to, from, (size_t)count * 4);
}

static void add(float* to, const float* a, const float* b, int64_t count, int past) {
  int64_t i = 0;
#if defined(__AVX__)
  if (past) {
    for (int64_t lead = lead_to_alignment(to, count); i < lead; i++) to[i] = a[i] + b[i];
    for (; i + 8 <= count; i += 8)
      _mm256_stream_ps(to + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
    for (; i < count; i++) to[i] = a[i] + b[i];
    _mm_sfence();
    return;
  }
#endif
  (void)past;
  for (; i < count; i++) to[i] = a[i] + b[i];
}

// ---- Shares ----

static void pack_shares(struct maker* m, const float* input, int64_t k, int64_t count) {
  // All of them first: in a last segment, which is shorter, a share lies where another's was.
  for (int r = 0; r < m->size; r++)
    if (r != m->rank) wait_for(&m->at[r].unpacked, m->done + k - m->slots + 1);
  for (int r = 0; r < m->size; r++) {
    if (r == m->rank) continue;
    struct span share = share_of(r, m->size, count);
    float* to = slot(m, m->rank, k) + share.first;
    copy(to, input + k * m->segment + share.first, share.count, m->stores_past);
  }
  advance(&m->at[m->rank].packed, m->done + k + 1);
}

// `at`: in the segment.
static void reduce_block(struct maker* m, const float* input, float* output, int64_t k, int64_t at,
                         int64_t count) {
  float scratch[kBlock];
  const float* sum = input + k * m->segment + at;
  float* out = output + k * m->segment + at;
  float* to = m->output_past ? scratch : out;
  for (int r = 0; r < m->size; r++) {
    if (r == m->rank) continue;
    add(to, sum, slot(m, r, k) + at, count, 0);
    sum = to;
  }
  // Copied there, not added up there: a copy stores whole lines, which need not be fetched from the
  // core that has read them last.
  copy(slot(m, m->rank, k) + at, sum, count, m->stores_past);
  if (sum != out) copy(out, sum, count, m->output_past);
}

static void reduce(struct maker* m, const float* input, float* output, int64_t k, int64_t count) {
  struct span share = share_of(m->rank, m->size, count);
  for (int r = 0; r < m->size; r++)
    if (r != m->rank) wait_for(&m->at[r].packed, m->done + k + 1);
  for (int64_t at = 0; at < share.count; at += kBlock) {
    int64_t left = share.count - at;
    reduce_block(m, input, output, k, share.first + at, left < kBlock ? left : kBlock);
  }
  advance(&m->at[m->rank].reduced, m->done + k + 1);
}

static void unpack(struct maker* m, float* output, int64_t k, int64_t count) {
  for (int r = 0; r < m->size; r++) {
    if (r == m->rank) continue;
    struct span share = share_of(r, m->size, count);
    wait_for(&m->at[r].reduced, m->done + k + 1);
    float* to = output + k * m->segment + share.first;
    copy(to, slot(m, r, k) + share.first, share.count, m->output_past);
  }
  advance(&m->at[m->rank].unpacked, m->done + k + 1);
}

// ---- The whole ----

static void pack_whole(struct maker* m, const float* input, int64_t k, int64_t count) {
  wait_for(&m->at[!m->rank].unpacked, m->done + k - m->slots + 1);
  copy(slot(m, m->rank, k), input + k * m->segment, count, m->stores_past);
  advance(&m->at[m->rank].packed, m->done + k + 1);
}

static void add_other(struct maker* m, const float* input, float* output, int64_t k,
                      int64_t count) {
  int64_t at = k * m->segment;
  wait_for(&m->at[!m->rank].packed, m->done + k + 1);
  add(output + at, input + at, slot(m, !m->rank, k), count, m->output_past);
  advance(&m->at[m->rank].unpacked, m->done + k + 1);
}

// Who has read a place may write it: nobody else waits for it.
static void exchange_places(struct maker* m, const float* input, float* output, int64_t k,
                            int64_t count) {
  int64_t at = k * m->segment, number = m->done + k;
  int mine = m->rank ^ (int)(number & 1);
  float* places[2] = {(float*)m->memory, (float*)(m->memory + m->turn)};
  copy(places[mine], input + at, count, m->stores_past);
  advance(&m->at[m->rank].packed, number + 1);
  wait_for(&m->at[!m->rank].packed, number + 1);
  add(output + at, input + at, places[!mine], count, m->output_past);
  advance(&m->at[m->rank].unpacked, number + 1);
}

// ---- Reading the other's memory ----

static void read_other(const struct maker* m, float* to, const float* from, int64_t count) {
  struct iovec here = {to, (size_t)count * 4}, there = {(float*)from, (size_t)count * 4};
  ssize_t got = process_vm_readv(m->at[!m->rank].pid, &here, 1, &there, 1, 0);
  if (got != (ssize_t)count * 4) fail("process_vm_readv is not permitted here");
}

// One call is one segment: the other's memory needs no places, but must stay until it was read.
static void allreduce_by_reading(struct maker* m, const float* input, float* output,
                                 int64_t count) {
  static float scratch[kReadBlock];
  struct counters *mine = &m->at[m->rank], *other = &m->at[!m->rank];
  int shares = m->exchange == kReadShares;
  m->done++;
  mine->pid = getpid();
  mine->input = input;
  mine->output = output;
  advance(&mine->packed, m->done);
  wait_for(&other->packed, m->done);
  struct span share = shares ? share_of(m->rank, 2, count) : (struct span){0, count};
  for (int64_t at = share.first, end = share.first + share.count; at < end; at += kReadBlock) {
    int64_t length = end - at < kReadBlock ? end - at : kReadBlock;
    read_other(m, scratch, other->input + at, length);
    add(output + at, input + at, scratch, length, m->output_past);
  }
  advance(&mine->reduced, m->done);
  if (shares) {
    wait_for(&other->reduced, m->done);
    struct span rest = share_of(!m->rank, 2, count);
    if (rest.count > 0) read_other(m, output + rest.first, other->output + rest.first, rest.count);
  }
  advance(&mine->unpacked, m->done);
  wait_for(&other->unpacked, m->done);
}

// ---- A call ----

static int64_t segment_count(const struct maker* m, int64_t k, int64_t count) {
  int64_t left = count - k * m->segment;
  return left < m->segment ? left : m->segment;
}

// Places lie as close as the segments allow. They move when that changes: nobody may read then.
static void lay_out(struct maker* m, int64_t count) {
  int64_t longest = (count < m->segment ? count : m->segment) * 4;
  int64_t stride = (longest + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  if (stride == m->stride) return;
  for (int r = 0; r < m->size; r++) wait_for(&m->at[r].unpacked, m->done);
  m->stride = stride;
  m->slots = m->turn / stride;
  if (m->most_slots > 0 && m->slots > m->most_slots) m->slots = m->most_slots;
}

static void allreduce(void* state, const float* input, float* output, int64_t count) {
  struct maker* m = state;
  if (m->exchange == kCopy) return copy(output, input, count, m->output_past);
  if (m->exchange == kRead || m->exchange == kReadShares)
    return allreduce_by_reading(m, input, output, count);
  int64_t segments = (count + m->segment - 1) / m->segment;
  if (m->exchange == kHanded) {
    for (int64_t k = 0; k < segments; k++)
      exchange_places(m, input, output, k, segment_count(m, k, count));
    m->done += segments;
    return;
  }
  lay_out(m, count);
  for (int64_t k = 0; k < segments + 2; k++) {
    int64_t now = segment_count(m, k, count), before = segment_count(m, k - 1, count);
    if (m->exchange == kWhole) {
      if (k < segments) pack_whole(m, input, k, now);
      if (k >= 1 && k <= segments) add_other(m, input, output, k - 1, before);
      continue;
    }
    if (k < segments) pack_shares(m, input, k, now);
    if (k >= 1 && k <= segments) reduce(m, input, output, k - 1, before);
    if (k >= 2) unpack(m, output, k - 2, segment_count(m, k - 2, count));
  }
  m->done += segments;
}

static int copies(void* state) { return ((const struct maker*)state)->exchange == kCopy; }

static void barrier(void* state) {
  struct maker* m = state;
  advance(&m->at[m->rank].arrived, ++m->barriers);
  for (int r = 0; r < m->size; r++) wait_for(&m->at[r].arrived, m->barriers);
}

static int is_past(const char* variable) {
  const char* text = getenv(variable);
  if (!text) return 0;
  if (strcmp(text, "past") != 0) fail("%s is \"%s\", not past", variable, text);
#if !defined(__AVX__)
  fail("%s: not for this processor", variable);
#endif
  return 1;
}

static enum exchange exchange_named(const char* text) {
  if (!text || strcmp(text, "shares") == 0) return kShares;
  if (strcmp(text, "whole") == 0) return kWhole;
  if (strcmp(text, "handed") == 0) return kHanded;
  if (strcmp(text, "read") == 0) return kRead;
  if (strcmp(text, "read-shares") == 0) return kReadShares;
  if (strcmp(text, "copy") != 0) fail("PERF_EXCHANGE is \"%s\"", text);
  return kCopy;
}

// Another way, with counters of its own, in the same memory: one way at a time is used.
static void* open_way(void* first) {
  struct maker* m = malloc(sizeof *m);
  if (!m || ways_made == kMostWays) fail("no room for one more way");
  *m = *(struct maker*)first;
  m->at = counters_of_ways + ways_made++ * m->size;
  m->done = m->barriers = m->stride = m->slots = 0;
  m->exchange = exchange_named(getenv("PERF_EXCHANGE"));
  if (m->exchange != kShares && m->exchange != kCopy && m->size != 2)
    fail("PERF_EXCHANGE=%s is for two ranks", getenv("PERF_EXCHANGE"));
  m->stores_past = is_past("PERF_STORES");
  m->output_past = is_past("PERF_OUTPUT");
  return m;
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
  struct maker m = {.segment = kDefaultSegmentBytes / 4};
  m.size = (int)parse_number(argv[2], 1, kMaxRanks, "ranks");
  if (argc > 3) m.segment = parse_number(argv[3], 4, 1 << 30, "segment bytes") / 4;
  if (argc > 4) m.most_slots = (int)parse_number(argv[4], kLeastSlots, 1024, "slots");
  int64_t least = (m.segment * 4 + kPlaceAlignment) * kLeastSlots;
  m.turn = kTurnBytes > least ? kTurnBytes : least;
  m.memory = share_memory((size_t)m.size * (size_t)m.turn);
  counters_of_ways = share_memory((size_t)m.size * kMostWays * sizeof(struct counters));
  m.rank = fork_ranks(m.size);
  // Lets the other rank read, where Yama asks for that; elsewhere it is refused, and not needed.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  pin_rank(m.rank, m.size);
  struct maker* way = open_way(&m);
  serve(&(struct peer){.rank = m.rank,
                       .size = m.size,
                       .state = way,
                       .barrier = barrier,
                       .call = allreduce,
                       .open = open_way,
                       .copies = copies},
        argv[1]);
  join_ranks();
  return 0;
}
