#define _GNU_SOURCE
#include "bench.h"

#include <errno.h>
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

enum { kMaxBatches = 100000, kUntimedCalls = 2 };

static FILE* harness_in;
static FILE* harness_out;

struct buffers {
  float* input;
  float* output;
  int64_t bytes;
};

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

int fork_ranks(int size) {
  pid_t parent = getpid();
  for (int rank = 1; rank < size; rank++) {
    pid_t child = fork();
    if (child < 0) fail("fork for rank %d: %s", rank, strerror(errno));
    if (child > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the parent died before prctl
    return rank;
  }
  return 0;
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

static void verify(const struct peer* peer, const struct buffers* b) {
  float ranks = (float)(peer->size * (peer->size + 1) / 2);
  for (int64_t i = 0; i < b->bytes / 4; i++) {
    float expected = peer->streams ? input_of(1 - peer->rank, i) : ranks * (float)(i % 17 + 1);
    if (b->output[i] != expected)
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

static void release(const struct buffers* b) {
  if (!b->bytes) return;
  munmap(b->input, (size_t)b->bytes);
  munmap(b->output, (size_t)b->bytes);
}

static void prepare(const struct peer* peer, struct buffers* b, int64_t bytes) {
  release(b);
  b->bytes = bytes;
  b->input = allocate(bytes);
  b->output = allocate(bytes);
  for (int64_t i = 0; i < bytes / 4; i++) b->input[i] = input_of(peer->rank, i);
  memset(b->output, 0xff, (size_t)bytes);
  for (int i = 0; i < kUntimedCalls; i++)
    peer->allreduce(peer->state, b->input, b->output, bytes / 4);
  verify(peer, b);
}

static void run(const struct peer* peer, struct buffers* b, char** words) {
  int64_t bytes = parse_number(strtok_r(NULL, " ", words), 4, INT64_MAX / 2, "size");
  int64_t batches = parse_number(strtok_r(NULL, " ", words), 1, kMaxBatches, "batches");
  int64_t calls = parse_number(strtok_r(NULL, " ", words), 1, INT64_MAX, "calls");
  if (bytes != b->bytes) prepare(peer, b, bytes);
  double* seconds = calloc((size_t)batches, sizeof *seconds);
  if (!seconds) fail("no memory for %lld times", (long long)batches);
  for (int64_t batch = 0; batch < batches; batch++) {
    peer->barrier(peer->state);
    double start = now();
    for (int64_t i = 0; i < calls; i++)
      peer->allreduce(peer->state, b->input, b->output, bytes / 4);
    seconds[batch] = now() - start;
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
  fprintf(harness_out, "hello %d %d\n", rank, (int)getpid());
  fflush(harness_out);
}

void serve(const struct peer* peer, const char* socket_path) {
  connect_harness(socket_path, peer->rank);
  struct buffers b = {0};
  char line[256];
  while (fgets(line, sizeof line, harness_in)) {
    line[strcspn(line, "\n")] = 0;
    char* words;
    const char* command = strtok_r(line, " ", &words);
    if (!command || strcmp(command, "quit") == 0) break;
    if (strcmp(command, "run") == 0)
      run(peer, &b, &words);
    else if (strcmp(command, "memory") == 0)
      report_memory(&b);
    else
      fail("unknown command %s", command);
    fflush(harness_out);
  }
  release(&b);
}
