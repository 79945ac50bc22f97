// Messages with tags between two ranks: ringcoll_messages <harness socket> <ranks> <store>
//
// Each rank ends with the other's input (bench.h, `streams`). The way that is there from the start
// is a ping-pong: one message there, and then one back. With PERF_WINDOW=n a way sends n messages
// at once and waits until the other has them, in one direction and then in the other.
#include <ringcoll/ringcoll.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { kMostWindow = 256, kTag = 1, kAnswerTag = 2 };

static struct {
  int rank;
  rc_comm* comm;
} job;

static void check(rc_status status, const char* what) {
  if (status != RC_OK) fail("ringcoll: rank %d: %s: %s", job.rank, what, ringcoll_error_message());
}

static void barrier(void* state) {
  (void)state;
  rc_call call = {.struct_size = sizeof call, .collective = RC_BARRIER};
  check(ringcoll_run(job.comm, &call), "barrier");
}

static rc_message message(const void* data, int64_t bytes, int tag) {
  return (rc_message){.struct_size = sizeof(rc_message),
                      .data = (void*)data,
                      .bytes = bytes,
                      .peer = 1 - job.rank,
                      .tag = tag};
}

static void send_one(const void* data, int64_t bytes, int tag) {
  rc_message one = message(data, bytes, tag);
  check(ringcoll_send(job.comm, &one), "send");
}

static void receive_one(void* data, int64_t bytes, int tag) {
  rc_message one = message(data, bytes, tag);
  check(ringcoll_recv(job.comm, &one, NULL), "recv");
}

static void ping(const float* input, float* output, int64_t bytes) {
  if (job.rank == 0) send_one(input, bytes, kTag);
  receive_one(output, bytes, kTag);
  if (job.rank == 1) send_one(input, bytes, kTag);
}

static void half_of_window(int window, int sender, const void* input, void* output, int64_t bytes) {
  rc_request* requests[kMostWindow];
  int done = 0;
  char answer = 0;
  rc_message one = message(job.rank == sender ? input : output, bytes, kTag);
  for (int i = 0; i < window; i++)
    if (job.rank == sender)
      check(ringcoll_isend(job.comm, &one, &requests[i]), "isend");
    else
      check(ringcoll_irecv(job.comm, &one, &requests[i]), "irecv");
  for (int i = 0; i < window; i++) {
    check(ringcoll_wait(requests[i], -1, &done), "wait");
    ringcoll_request_free(requests[i]);
  }
  if (job.rank == sender)
    receive_one(&answer, 1, kAnswerTag);
  else
    send_one(&answer, 1, kAnswerTag);
}

static void move(void* state, const float* input, float* output, int64_t count) {
  int64_t bytes = count * (int64_t)sizeof *input;
  int window = *(int*)state;
  if (!window) return ping(input, output, bytes);
  half_of_window(window, 0, input, output, bytes);
  half_of_window(window, 1, input, output, bytes);
}

static void* open_way(void* first) {
  static int window;
  (void)first;
  window = (int)parse_number(getenv("PERF_WINDOW"), 1, kMostWindow, "PERF_WINDOW");
  return &window;
}

int main(int argc, char** argv) {
  int none = 0;
  if (argc != 4) fail("usage: %s <harness socket> 2 <store>", argv[0]);
  int size = (int)parse_number(argv[2], 2, 2, "ranks");
  job.rank = fork_ranks(size);
  rc_comm_options options = {
      .struct_size = sizeof options, .rank = job.rank, .size = size, .store = argv[3]};
  check(ringcoll_comm_create(&options, &job.comm), "create");
  struct peer peer = {.rank = job.rank,
                      .size = size,
                      .streams = 1,
                      .state = &none,
                      .barrier = barrier,
                      .call = move,
                      .open = open_way};
  serve(&peer, argv[1]);
  ringcoll_comm_destroy(job.comm);
  join_ranks();
  return 0;
}
