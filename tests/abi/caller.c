/* A caller as it may have been compiled against any header of the C ABI: caller RANK SIZE STORE.
 * Behind each struct lie bytes that are not 0, which a library must not take for fields of it.
 * RINGCOLL_HEADER is the header. */
#include RINGCOLL_HEADER

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBeyond = 256, kCount = 1000 };

#define REQUIRE(condition)                                                                  \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      fprintf(stderr, "rank %d, line %d: %s; last error: %s\n", rank, __LINE__, #condition, \
              ringcoll_error_message());                                                    \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)

static int rank, size;

struct long_call {
  rc_call call;
  unsigned char beyond[kBeyond];
};

static void sum_of(struct long_call* a, const rc_buffer* buffer) {
  memset(a, 0, sizeof *a);
  memset(a->beyond, 0xff, sizeof a->beyond);
  a->call.struct_size = sizeof a->call;
  a->call.collective = RC_ALLREDUCE;
  a->call.dtype = RC_FLOAT32;
  a->call.op = RC_SUM;
  a->call.buffers = buffer;
  a->call.buffer_count = 1;
}

static rc_comm* create(const char* store) {
  struct {
    rc_comm_options options;
    unsigned char beyond[kBeyond];
  } a;
  rc_comm* comm = NULL;
  memset(&a, 0, sizeof a);
  memset(a.beyond, 0xff, sizeof a.beyond);
  a.options.struct_size = sizeof a.options;
  a.options.rank = rank;
  a.options.size = size;
  a.options.store = store;
  a.options.timeout_s = 30;
  REQUIRE(ringcoll_comm_create(&a.options, &comm) == RC_OK);
  REQUIRE(ringcoll_comm_rank(comm) == rank && ringcoll_comm_size(comm) == size);
  return comm;
}

static void run_blocking(rc_comm* comm) {
  float values[kCount];
  rc_buffer buffer = {values, values, kCount};
  struct long_call sum;
  int i;
  sum_of(&sum, &buffer);
  for (i = 0; i < kCount; i++) values[i] = (float)(i + rank);
  REQUIRE(ringcoll_run(comm, &sum.call) == RC_OK);
  for (i = 0; i < kCount; i++) REQUIRE(values[i] == (float)(i * size + size * (size - 1) / 2));
}

static void run_asynchronous(rc_comm* comm) {
  float first = 1, second = 2;
  rc_buffer buffer = {&first, &first, 1};
  struct long_call sum;
  rc_request* requests[2] = {NULL, NULL};
  int done = 0;
  sum_of(&sum, &buffer);
  REQUIRE(ringcoll_start(comm, &sum.call, &requests[0]) == RC_OK);
  buffer.input = buffer.output = &second;
  REQUIRE(ringcoll_start(comm, &sum.call, &requests[1]) == RC_OK);
  while (!done) REQUIRE(ringcoll_wait(requests[0], 0, &done) == RC_OK);
  REQUIRE(first == (float)size);
  REQUIRE(ringcoll_wait(requests[1], -1, &done) == RC_OK && done == 1);
  REQUIRE(second == 2 * (float)size);
  ringcoll_request_free(requests[0]);
  ringcoll_request_free(requests[1]);
}

#ifdef RC_ANY_SOURCE
struct long_message {
  rc_message message;
  unsigned char beyond[kBeyond];
};

static void say(struct long_message* a, void* data, int64_t bytes, int32_t tag) {
  memset(a, 0, sizeof *a);
  memset(a->beyond, 0xff, sizeof a->beyond);
  a->message.struct_size = sizeof a->message;
  a->message.data = data;
  a->message.bytes = bytes;
  a->message.peer = (rank + 1) % size;
  a->message.tag = tag;
}

static void send_messages(rc_comm* comm) {
  float there[kCount], here[kCount];
  struct long_message message;
  struct {
    rc_message_info info;
    unsigned char beyond[kBeyond];
  } told;
  rc_request* request = NULL;
  int done = 0, i;
  for (i = 0; i < kCount; i++) there[i] = (float)(i + rank);
  say(&message, there, sizeof there, 3);
  REQUIRE(ringcoll_isend(comm, &message.message, &request) == RC_OK);
  say(&message, here, sizeof here, RC_ANY_TAG);
  message.message.peer = RC_ANY_SOURCE;
  memset(&told, 0xff, sizeof told);
  told.info.struct_size = sizeof told.info;
  REQUIRE(ringcoll_recv(comm, &message.message, &told.info) == RC_OK);
  REQUIRE(told.info.source == (rank + size - 1) % size && told.info.tag == 3);
  REQUIRE(told.info.bytes == (int64_t)sizeof here && told.beyond[0] == 0xff);
  for (i = 0; i < kCount; i++) REQUIRE(here[i] == (float)(i + told.info.source));
  REQUIRE(ringcoll_wait(request, -1, &done) == RC_OK && done == 1);
  ringcoll_request_free(request);
}
#else
static void send_messages(rc_comm* comm) { (void)comm; }
#endif

static void run_in_groups(rc_comm* comm) {
  int32_t alone = rank;
  rc_comm* sub = NULL;
  REQUIRE(ringcoll_comm_split(comm, &alone, 1, "alone", &sub) == RC_OK);
  REQUIRE(ringcoll_comm_rank(sub) == 0 && ringcoll_comm_size(sub) == 1);
  ringcoll_comm_destroy(sub);
}

static void be_refused(rc_comm* comm) {
  float value = 1;
  rc_buffer buffer = {&value, &value, 1};
  struct long_call sum;
  sum_of(&sum, &buffer);
  sum.call.op = RC_BIT_AND;
  REQUIRE(ringcoll_run(comm, &sum.call) == RC_INVALID_ARGUMENT);
  REQUIRE(strstr(ringcoll_error_message(), "float32") != NULL);
  REQUIRE(ringcoll_error_rank() == -1);
  sum.call.op = RC_MAX;
  sum.call.prescale = HUGE_VAL;
  REQUIRE(ringcoll_run(comm, &sum.call) == RC_INVALID_ARGUMENT);
  REQUIRE(strstr(ringcoll_error_message(), "prescale") != NULL);
}

static void ask(rc_comm* comm) {
  char* json = NULL;
  REQUIRE(ringcoll_comm_stats(comm, &json) == RC_OK && strstr(json, "\"calls\"") != NULL);
  ringcoll_free(json);
  REQUIRE(ringcoll_info(&json) == RC_OK && strstr(json, ringcoll_version()) != NULL);
  ringcoll_free(json);
  REQUIRE(ringcoll_simulate("{}", &json) == RC_INVALID_ARGUMENT);
}

static void abort_all(rc_comm* comm) {
  float value = 1;
  rc_buffer buffer = {&value, &value, 1};
  struct long_call sum;
  sum_of(&sum, &buffer);
  if (rank == size - 1) ringcoll_comm_abort(comm, "enough of it");
  REQUIRE(ringcoll_run(comm, &sum.call) == RC_ABORTED);
  REQUIRE(strstr(ringcoll_error_message(), "enough of it") != NULL);
  REQUIRE(ringcoll_error_rank() == size - 1);
}

int main(int argc, char** argv) {
  rc_comm* comm;
  if (argc != 4) return 2;
  rank = atoi(argv[1]);
  size = atoi(argv[2]);
  REQUIRE(ringcoll_abi_version() == RINGCOLL_ABI_VERSION);
  comm = create(argv[3]);
  run_blocking(comm);
  run_asynchronous(comm);
  send_messages(comm);
  run_in_groups(comm);
  be_refused(comm);
  ask(comm);
  abort_all(comm);
  ringcoll_comm_destroy(comm);
  printf("rank %d of %d is done\n", rank, size);
  return 0;
}
