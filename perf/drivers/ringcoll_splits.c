// What groups cost: ringcoll_splits <ranks> <store> <members> <groups>
//
// The first <members> ranks are split off a running job <groups> times, and all groups are kept.
// Then each group is used, by an alltoall, which needs every pair of it; then by an asynchronous
// call; then all are destroyed. Rank 0 prints a line of JSON: the seconds of each split and of each
// first use, and what a process has more after each of these than before all, of descriptors,
// threads and memory. Each figure is that of the rank that has most.
#include <dirent.h>
#include <ringcoll/ringcoll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bench.h"

enum { kMostGroups = 64, kMostRanks = 64, kUntimedCalls = 20 };
enum figure { kDescriptors, kThreads, kResident, kProportional, kFigures };
enum moment { kBefore, kFirstSplit, kSplit, kUsed, kStarted, kEnded, kMoments };
static const char* const kFigureNames[] = {"descriptors", "threads", "rss_bytes", "pss_bytes"};
static const char* const kMomentNames[] = {"before", "first", "split", "used", "started", "ended"};

static struct {
  int rank, members, groups, is_member;
  rc_comm* whole;
  rc_comm* parts[kMostGroups];
} job;

// As they are reduced over the ranks, in one piece.
static struct {
  double split_s[kMostGroups];
  double use_s[kMostGroups];
  double has[kMoments][kFigures];
} found;

static void check(rc_status status, const char* what) {
  if (status != RC_OK) fail("ringcoll: rank %d: %s: %s", job.rank, what, ringcoll_error_message());
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void barrier(void) {
  rc_call call = {.struct_size = sizeof call, .collective = RC_BARRIER};
  check(ringcoll_run(job.whole, &call), "barrier");
}

static void take_most(double* values, int64_t count) {
  rc_buffer buffer = {values, values, count};
  rc_call call = {.struct_size = sizeof call,
                  .collective = RC_ALLREDUCE,
                  .dtype = RC_FLOAT64,
                  .op = RC_MAX,
                  .buffers = &buffer,
                  .buffer_count = 1};
  check(ringcoll_run(job.whole, &call), "allreduce");
}

static void use(rc_comm* comm) {
  float input[kMostRanks], output[kMostRanks];
  int rank = ringcoll_comm_rank(comm), size = ringcoll_comm_size(comm);
  for (int i = 0; i < size; i++) input[i] = (float)(kMostRanks * rank + i);
  rc_buffer buffer = {input, output, 1};
  rc_call call = {.struct_size = sizeof call,
                  .collective = RC_ALLTOALL,
                  .dtype = RC_FLOAT32,
                  .buffers = &buffer,
                  .buffer_count = 1};
  check(ringcoll_run(comm, &call), "alltoall");
  for (int i = 0; i < size; i++)
    if (output[i] != (float)(kMostRanks * i + rank))
      fail("rank %d: alltoall: %g from rank %d", rank, (double)output[i], i);
}

static void start_and_wait(rc_comm* comm) {
  rc_call call = {.struct_size = sizeof call, .collective = RC_BARRIER};
  rc_request* request = NULL;
  int done = 0;
  check(ringcoll_start(comm, &call, &request), "start");
  check(ringcoll_wait(request, -1, &done), "wait");
  ringcoll_request_free(request);
}

static double entries_of(const char* folder) {
  DIR* all = opendir(folder);
  double count = 0;
  if (!all) fail("%s cannot be read", folder);
  while (readdir(all)) count++;
  closedir(all);
  return count;
}

// Without the thread that makes connections: it ends by itself a moment after they are there.
static double lasting_threads(void) {
  DIR* all = opendir("/proc/self/task");
  double count = 0;
  if (!all) fail("/proc/self/task cannot be read");
  for (struct dirent* task; (task = readdir(all)) != NULL;) {
    char path[64 + sizeof task->d_name], name[32] = "";
    if (task->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    FILE* file = fopen(path, "r");
    if (!file) continue;  // it has ended
    if (fgets(name, sizeof name, file) && strcmp(name, "ringcoll-dial\n") != 0) count++;
    fclose(file);
  }
  closedir(all);
  return count;
}

static void read_memory(double* has) {
  char line[256];
  long kib = 0;
  FILE* file = fopen("/proc/self/smaps_rollup", "r");
  if (!file) fail("/proc/self/smaps_rollup cannot be read");
  while (fgets(line, sizeof line, file)) {
    if (sscanf(line, "Rss: %ld", &kib) == 1) has[kResident] = (double)kib * 1024;
    if (sscanf(line, "Pss: %ld", &kib) == 1) has[kProportional] = (double)kib * 1024;
  }
  fclose(file);
}

// Between barriers: what others do meanwhile changes a proportional share.
static void look(enum moment moment) {
  double* has = found.has[moment];
  barrier();
  has[kDescriptors] = entries_of("/proc/self/fd");
  has[kThreads] = lasting_threads();
  read_memory(has);
  barrier();
}

static void split(int group) {
  int32_t ranks[kMostRanks];
  for (int i = 0; i < job.members; i++) ranks[i] = i;
  int32_t count = job.is_member ? job.members : 0;
  barrier();
  double begun = now();
  check(ringcoll_comm_split(job.whole, ranks, count, "part", &job.parts[group]), "split");
  found.split_s[group] = now() - begun;
}

static void make_groups(void) {
  split(0);
  look(kFirstSplit);
  for (int i = 1; i < job.groups; i++) split(i);
  look(kSplit);
}

static void use_groups(void) {
  for (int i = 0; i < job.groups; i++) {
    barrier();
    double begun = now();
    if (job.is_member) use(job.parts[i]);
    found.use_s[i] = now() - begun;
  }
  look(kUsed);
  for (int i = 0; i < job.groups && job.is_member; i++) start_and_wait(job.parts[i]);
  look(kStarted);
}

static void end_groups(void) {
  for (int i = 0; i < job.groups && job.is_member; i++) ringcoll_comm_destroy(job.parts[i]);
  look(kEnded);
}

static void print_seconds(const char* name, const double* seconds) {
  printf("\"%s\": [", name);
  for (int i = 0; i < job.groups; i++) printf("%s%.9f", i ? ", " : "", seconds[i]);
  printf("], ");
}

static void print_found(void) {
  printf("{");
  print_seconds("split_s", found.split_s);
  print_seconds("use_s", found.use_s);
  printf("\"added\": {");
  for (int m = kFirstSplit; m < kMoments; m++) {
    printf("%s\"%s\": {", m > kFirstSplit ? ", " : "", kMomentNames[m]);
    for (int f = 0; f < kFigures; f++)
      printf("%s\"%s\": %.0f", f ? ", " : "", kFigureNames[f], found.has[m][f]);
    printf("}");
  }
  printf("}}\n");
}

static void create(int size, const char* store) {
  rc_comm_options options = {.struct_size = sizeof options,
                             .rank = job.rank,
                             .size = size,
                             .store = store,
                             .name = "perf"};
  check(ringcoll_comm_create(&options, &job.whole), "create");
  double values[kMostRanks] = {0};
  for (int i = 0; i < kUntimedCalls; i++) take_most(values, kMostRanks);
  use(job.whole);
  start_and_wait(job.whole);
  look(kBefore);  // the first look has the memory in it that looking takes
  look(kBefore);
}

int main(int argc, char** argv) {
  if (argc != 5) fail("usage: %s <ranks> <store> <members> <groups>", argv[0]);
  int size = (int)parse_number(argv[1], 1, kMostRanks, "ranks");
  job.members = (int)parse_number(argv[3], 1, size, "members");
  job.groups = (int)parse_number(argv[4], 1, kMostGroups, "groups");
  job.rank = fork_ranks(size);
  job.is_member = job.rank < job.members;
  create(size, argv[2]);
  make_groups();
  use_groups();
  end_groups();
  for (int m = kFirstSplit; m < kMoments; m++)
    for (int f = 0; f < kFigures; f++) found.has[m][f] -= found.has[kBefore][f];
  take_most((double*)&found, sizeof found / sizeof(double));
  if (job.rank == 0) print_found();
  ringcoll_comm_destroy(job.whole);
  join_ranks();
  return 0;
}
