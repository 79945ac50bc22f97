#define _GNU_SOURCE
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  kMaxBatches = 100000,
  kUntimedCalls = 2,
  kLarge = 64 << 20,
  kMostWays = 64,
  kMostSettings = 8
};

static FILE* harness_in;
static FILE* harness_out;

struct buffers {
  float* input;
  float* output;
  int64_t bytes;  // 0: there are none
  int64_t count;  // as a peer's call has it
  int64_t gets;   // elements of the output that a call writes
};

struct way {
  char name[64];
  void* state;
  int64_t ready_bytes;  // the size at which it was verified last
};

static struct way ways[kMostWays];
static struct way* way_in_use;
static enum collective collective;
static int scales;  // the average is made of the peer's sum here
static int writes;  // inputs, before each call

void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s\n", text);
  if (harness_out) {
    for (char* at = text; *at; at++)
      if (*at == '\n') *at = ' ';
    fprintf(harness_out, "error %s\n", text);
    fflush(harness_out);
  }
  _exit(1);
}

enum collective wanted_collective(void) {
  static const char* const names[] = {[kAllreduce] = "allreduce",
                                      [kReduceScatter] = "reduce_scatter",
                                      [kAllgather] = "allgather",
                                      [kBroadcast] = "broadcast",
                                      [kAlltoall] = "alltoall"};
  const char* named = getenv("PERF_COLLECTIVE");
  if (!named) return kAllreduce;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(named, names[i]) == 0) return (enum collective)i;
  fail("PERF_COLLECTIVE is \"%s\", which is none of those measured", named);
}

int wants_average(void) { return getenv("PERF_AVERAGE") != NULL; }

int fork_ranks(int size) {
  pid_t parent = getpid();
  const char* named = getenv("PERF_RANKS");
  char list[4096];
  int ranks[1024], count = 0;
  if (named) {
    char* rest = list;
    if (strlen(named) >= sizeof list) fail("PERF_RANKS is too long");
    strcpy(list, named);
    for (char* word; (word = strsep(&rest, ",")) && count < 1024; count++)
      ranks[count] = (int)parse_number(word, 0, size - 1, "PERF_RANKS");
  } else {
    for (; count < size && count < 1024; count++) ranks[count] = count;
  }
  for (int i = 1; i < count; i++) {
    pid_t child = fork();
    if (child < 0) fail("fork for rank %d: %s", ranks[i], strerror(errno));
    if (child > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the parent died before prctl
    return ranks[i];
  }
  return ranks[0];
}

void join_ranks(void) {
  while (wait(NULL) > 0) continue;
}

void pin_rank(int rank, int size) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < size) return;
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed) || seen++ != rank) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

int64_t parse_number(const char* text, int64_t least, int64_t most, const char* what) {
  char* end = NULL;
  errno = 0;
  long long value = text ? strtoll(text, &end, 10) : 0;
  if (!text || end == text || *end || errno || value < least || value > most)
    fail("%s is \"%s\", not a number from %lld to %lld", what, text ? text : "", (long long)least,
         (long long)most);
  return value;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Small whole numbers: their float32 sum is exact in any order.
static float input_of(int rank, int64_t i) { return (float)((rank + 1) * (i % 17 + 1)); }

static void call(const struct peer* peer, const struct buffers* b) {
  peer->call(way_in_use->state, b->input, b->gets ? b->output : NULL, b->count);
  if (!scales) return;
  float factor = 1.0F / (float)peer->size;
  for (int64_t i = 0; i < b->gets; i++) b->output[i] *= factor;
}

// As training does, whose gradients are new in each step. Returns the seconds that it took.
static double write_input(const struct peer* peer, const struct buffers* b) {
  static volatile float one = 1;  // so that the compiler does not see that nothing changes
  if (collective == kBroadcast && peer->rank != 0) return 0;
  double start = now();
  float factor = one;
  int64_t puts = collective == kAllgather ? b->count : b->bytes / 4;
  for (int64_t i = 0; i < puts; i++) b->input[i] *= factor;
  return now() - start;
}

static float expected_of(const struct peer* peer, int64_t part, float ranks, int64_t i) {
  if (peer->copies && peer->copies(way_in_use->state)) return input_of(peer->rank, i);
  if (peer->streams) return input_of(1 - peer->rank, i);
  int64_t mine = peer->rank * part;
  switch (collective) {
    case kReduceScatter:
      return ranks * input_of(0, mine + i);
    case kAllgather:
      return input_of((int)(i / part), i % part);
    case kBroadcast:
      return input_of(0, i);
    case kAlltoall:
      return input_of((int)(i / part), mine + i % part);
    case kAllreduce:
      break;
  }
  return ranks * input_of(0, i);
}

static void verify(const struct peer* peer, const struct buffers* b) {
  float ranks = (float)(peer->size * (peer->size + 1) / 2);
  float rounding = 0;
  if (wants_average()) {
    ranks /= (float)peer->size;
    rounding = 1e-6F;
  }
  for (int64_t i = 0; i < b->gets; i++) {
    float expected = expected_of(peer, b->count, ranks, i);
    if (!(fabsf(b->output[i] - expected) <= rounding * expected))
      fail("rank %d, %lld bytes: element %lld is %g instead of %g", peer->rank, (long long)b->bytes,
           (long long)i, b->output[i], expected);
  }
}

// Straight from the kernel, so that what malloc would keep is not taken for memory of the peer.
static float* allocate(int64_t bytes) {
  void* memory =
      mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    fail("no memory for a buffer of %lld bytes: %s", (long long)bytes, strerror(errno));
  return memory;
}

static void release(struct buffers* b) {
  if (!b->bytes) return;
  munmap(b->input, (size_t)b->bytes);
  munmap(b->output, (size_t)b->bytes);
  b->bytes = 0;
}

static void prepare(const struct peer* peer, struct buffers* b, int64_t bytes) {
  int64_t whole = bytes / 4;
  int has_parts = collective != kAllreduce && collective != kBroadcast;
  if (has_parts && whole % peer->size)
    fail("%lld bytes are not as many elements for each of %d ranks", (long long)bytes, peer->size);
  release(b);
  b->bytes = bytes;
  b->count = has_parts ? whole / peer->size : whole;
  b->gets = collective == kReduceScatter ? b->count : whole;
  if (collective == kBroadcast && peer->rank == 0) b->gets = 0;
  b->input = allocate(bytes);
  b->output = allocate(bytes);
  for (int64_t i = 0; i < bytes / 4; i++) b->input[i] = input_of(peer->rank, i);
  memset(b->output, 0xff, (size_t)bytes);
}

static void warm_up(const struct peer* peer, struct buffers* b) {
  memset(b->output, 0xff, (size_t)b->bytes);
  for (int i = 0; i < (b->bytes < kLarge ? kUntimedCalls : 1); i++) call(peer, b);
  verify(peer, b);
  way_in_use->ready_bytes = b->bytes;
}

static struct way* find_way(const char* name) {
  int i = 0;
  for (; i < kMostWays && ways[i].name[0]; i++)
    if (strcmp(ways[i].name, name) == 0) return &ways[i];
  if (i == kMostWays || strlen(name) >= sizeof ways[i].name) fail("no room for the way %s", name);
  return &ways[i];
}

// A variable that is set for as long as a way is made.
struct setting {
  char name[64];
  char* before;  // its value before, or NULL
};

static struct setting set_variable(char* word) {
  struct setting made = {0};
  char* equals = word ? strchr(word, '=') : NULL;
  if (!equals || equals - word >= (long)sizeof made.name) fail("use: not a variable: %s", word);
  memcpy(made.name, word, (size_t)(equals - word));
  const char* before = getenv(made.name);
  made.before = before ? strdup(before) : NULL;
  setenv(made.name, equals + 1, 1);
  return made;
}

static void restore(struct setting* made) {
  if (made->before)
    setenv(made->name, made->before, 1);
  else
    unsetenv(made->name);
  free(made->before);
}

// use <name> [<VARIABLE>=<value> ...]
static void use(const struct peer* peer, char** words) {
  const char* name = strtok_r(NULL, " ", words);
  if (!name) fail("use: no name");
  way_in_use = find_way(name);
  if (!way_in_use->name[0]) {
    if (!peer->open) fail("use %s: there is one way only", name);
    struct setting made[kMostSettings];
    int count = 0;
    for (char* word; count < kMostSettings && (word = strtok_r(NULL, " ", words)); count++)
      made[count] = set_variable(word);
    way_in_use->state = peer->open(peer->state);
    strcpy(way_in_use->name, name);
    while (count > 0) restore(&made[--count]);
  }
  fprintf(harness_out, "using\n");
}

static void run(const struct peer* peer, struct buffers* b, char** words) {
  int64_t bytes = parse_number(strtok_r(NULL, " ", words), 4, INT64_MAX / 2, "size");
  int64_t batches = parse_number(strtok_r(NULL, " ", words), 1, kMaxBatches, "batches");
  int64_t calls = parse_number(strtok_r(NULL, " ", words), 1, INT64_MAX, "calls");
  if (bytes != b->bytes) prepare(peer, b, bytes);
  if (bytes != way_in_use->ready_bytes) warm_up(peer, b);
  double* seconds = calloc((size_t)batches, sizeof *seconds);
  if (!seconds) fail("no memory for %lld times", (long long)batches);
  for (int64_t batch = 0; batch < batches; batch++) {
    peer->barrier(way_in_use->state);
    double start = now(), written = 0;
    for (int64_t i = 0; i < calls; i++) {
      if (writes) written += write_input(peer, b);
      call(peer, b);
    }
    seconds[batch] = now() - start - written;
  }
  fprintf(harness_out, "times");
  for (int64_t batch = 0; batch < batches; batch++) fprintf(harness_out, " %.9f", seconds[batch]);
  fprintf(harness_out, "\n");
  free(seconds);
}

static long kib_of(const char* path, const char* format) {
  long kib = -1;
  char line[256];
  FILE* file = fopen(path, "r");
  if (!file) fail("%s: %s", path, strerror(errno));
  while (fgets(line, sizeof line, file)) sscanf(line, format, &kib);
  fclose(file);
  if (kib < 0) fail("%s has no line \"%s\"", path, format);
  return kib;
}

// A page that several ranks map counts in parts that add up to one (PSS). The kernel keeps no peak
// of that: it is taken to have been as far above the present as the peak of resident memory is.
static void report_memory(const struct buffers* b) {
  long peak_kib = kib_of("/proc/self/smaps_rollup", "Pss: %ld") +
                  kib_of("/proc/self/status", "VmHWM: %ld") -
                  kib_of("/proc/self/status", "VmRSS: %ld");
  FILE* reset = fopen("/proc/self/clear_refs", "w");
  if (reset) {
    fputs("5", reset);  // 5: the peak starts again at what is resident now
    fclose(reset);
  }
  fprintf(harness_out, "memory %ld %ld\n", peak_kib, (long)(2 * b->bytes / 1024));
}

static void describe(const struct peer* peer) {
  char* text = peer->describe ? peer->describe(way_in_use->state) : NULL;
  fprintf(harness_out, "described %s\n", text ? text : "");
  free(text);
}

static void connect_harness(const char* path, int rank) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) fail("socket path too long: %s", path);
  strcpy(address.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof address) != 0)
    fail("rank %d: connect to the harness at %s: %s", rank, path, strerror(errno));
  harness_in = fdopen(fd, "r");
  harness_out = fdopen(dup(fd), "w");
  if (!harness_in || !harness_out) fail("fdopen: %s", strerror(errno));
  fprintf(harness_out, "hello %d\n", rank);
  fflush(harness_out);
}

void serve(const struct peer* peer, const char* socket_path) {
  // Once, and not in each call: what getenv takes would be part of the smallest calls' times.
  collective = wanted_collective();
  scales = wants_average() && !peer->averages;
  writes = getenv("PERF_WRITES") != NULL;
  connect_harness(socket_path, peer->rank);
  way_in_use = find_way("-");
  *way_in_use = (struct way){.name = "-", .state = peer->state};
  struct buffers b = {0};
  char line[4096];
  while (fgets(line, sizeof line, harness_in)) {
    line[strcspn(line, "\n")] = 0;
    char* words;
    const char* command = strtok_r(line, " ", &words);
    if (!command || strcmp(command, "quit") == 0) break;
    if (strcmp(command, "run") == 0)
      run(peer, &b, &words);
    else if (strcmp(command, "use") == 0)
      use(peer, &words);
    else if (strcmp(command, "memory") == 0)
      report_memory(&b);
    else if (strcmp(command, "free") == 0)
      release(&b), fprintf(harness_out, "freed\n");
    else if (strcmp(command, "describe") == 0)
      describe(peer);
    else
      fail("unknown command %s", command);
    fflush(harness_out);
  }
  release(&b);
}
