/* Prints where RINGCOLL_HEADER puts each field of revision 1 of the C ABI, and what it calls each
 * number. What it prints never changes. */
#include RINGCOLL_HEADER

#include <stdio.h>

#define FIELD(type, name) \
  printf("%s.%s: %zu bytes at %zu\n", #type, #name, sizeof(((type*)0)->name), offsetof(type, name))
#define SIZE(type) printf("%s: %zu bytes\n", #type, sizeof(type))
#define NUMBER(name) printf("%s = %d\n", #name, (int)(name))

static void print_structs(void) {
  SIZE(rc_buffer);
  FIELD(rc_buffer, input);
  FIELD(rc_buffer, output);
  FIELD(rc_buffer, count);
  FIELD(rc_call, struct_size);
  FIELD(rc_call, collective);
  FIELD(rc_call, dtype);
  FIELD(rc_call, op);
  FIELD(rc_call, root);
  FIELD(rc_call, buffers);
  FIELD(rc_call, buffer_count);
  FIELD(rc_call, counts);
  FIELD(rc_call, recv_counts);
  FIELD(rc_call, prescale);
  FIELD(rc_call, postscale);
  FIELD(rc_comm_options, struct_size);
  FIELD(rc_comm_options, rank);
  FIELD(rc_comm_options, size);
  FIELD(rc_comm_options, store);
  FIELD(rc_comm_options, name);
  FIELD(rc_comm_options, exchange);
  FIELD(rc_comm_options, exchange_state);
  FIELD(rc_comm_options, timeout_s);
}

static void print_statuses(void) {
  NUMBER(RINGCOLL_ABI_VERSION);
  NUMBER(RC_OK);
  NUMBER(RC_INVALID_ARGUMENT);
  NUMBER(RC_TIMEOUT);
  NUMBER(RC_PEER_LOST);
  NUMBER(RC_TRANSPORT);
  NUMBER(RC_MISMATCH);
  NUMBER(RC_INTERNAL);
  NUMBER(RC_ABORTED);
}

static void print_types_and_ops(void) {
  SIZE(rc_dtype);
  NUMBER(RC_UINT8);
  NUMBER(RC_INT8);
  NUMBER(RC_UINT16);
  NUMBER(RC_INT16);
  NUMBER(RC_UINT32);
  NUMBER(RC_INT32);
  NUMBER(RC_UINT64);
  NUMBER(RC_INT64);
  NUMBER(RC_FLOAT16);
  NUMBER(RC_BFLOAT16);
  NUMBER(RC_FLOAT32);
  NUMBER(RC_FLOAT64);
  NUMBER(RC_BOOL);
  SIZE(rc_op);
  NUMBER(RC_SUM);
  NUMBER(RC_AVERAGE);
  NUMBER(RC_MIN);
  NUMBER(RC_MAX);
  NUMBER(RC_PRODUCT);
  NUMBER(RC_BIT_AND);
  NUMBER(RC_BIT_OR);
}

static void print_collectives(void) {
  SIZE(rc_collective);
  NUMBER(RC_ALLREDUCE);
  NUMBER(RC_ALLGATHER);
  NUMBER(RC_REDUCE_SCATTER);
  NUMBER(RC_BROADCAST);
  NUMBER(RC_REDUCE);
  NUMBER(RC_GATHER);
  NUMBER(RC_SCATTER);
  NUMBER(RC_ALLTOALL);
  NUMBER(RC_BARRIER);
}

int main(void) {
  print_structs();
  print_statuses();
  print_types_and_ops();
  print_collectives();
  return 0;
}
