/* ringcoll: collective communication over RDMA, shared memory and TCP.
 *
 * ringcoll/remote.h has what concerns memory with an address. This header declares a C ABI with
 * opaque handles in four groups: communicators (create, split, shrink, query, abort, destroy),
 * collective calls (rc_call), messages from one rank to another (rc_message), and requests (a call
 * or a message in flight). Deltas and checksums of tensors, and rules, are plain functions.
 *
 * Errors: a function that can fail returns an rc_status. ringcoll_error_message() then tells the
 * same thread what was being done, the cause and the remedy. RC_INVALID_ARGUMENT and RC_TOO_LONG
 * leave the communicator usable. Any other error of a call poisons the communicator: every later
 * call on it returns the same first error. Then destroy it and create another one, or use
 * ringcoll_comm_shrink(). The exceptions are messages that end unmatched (see rc_message) and
 * errors of ringcoll_comm_shrink(), which leave the communicator as it was.
 *
 * Threads: any thread may call any function. But a communicator must not be destroyed while a call
 * on it runs. All ranks must submit their collective calls on one communicator in the same order.
 * Messages may be sent and received in any order.
 *
 * fork(2): a process may fork at any time. The child cannot use handles of its parent: functions
 * that return an rc_status return RC_INVALID_ARGUMENT for them, and abort, destroy and free do
 * nothing. The library closes its descriptors in the child, so that peers notice when the parent
 * ends. The child may create communicators of its own.
 *
 * ABI rule: RINGCOLL_ABI_VERSION changes when programs compiled with an older header would break.
 * A program may refuse a library of another version. RINGCOLL_ABI_REVISION counts the additions
 * since. A library works with programs of every revision of its version. A program that needs
 * something of revision N checks that ringcoll_abi_revision() >= N; a library without that function
 * has revision 1. A revision may add functions, values at the end of an enumeration, keys of JSON,
 * and fields at the end of a struct that begins with struct_size. Nothing else changes. rc_buffer
 * is passed in arrays, so it has no struct_size and never grows.
 *
 * struct_size: the caller sets it to sizeof(the struct) as compiled. A shorter struct comes from an
 * older revision; the library takes its missing fields as 0. A longer struct comes from a newer
 * revision; the library accepts it if all bytes that it does not know are 0. A field of 0 means
 * "default", which is what happened before the field existed.
 */
#ifndef RINGCOLL_RINGCOLL_H_
#define RINGCOLL_RINGCOLL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RINGCOLL_ABI_VERSION 1
#define RINGCOLL_ABI_REVISION 3
#define RINGCOLL_API __attribute__((visibility("default")))

typedef enum rc_status {
  RC_OK = 0,
  RC_INVALID_ARGUMENT =
      1,            /* the call was refused and sent nothing; the communicator stays usable */
  RC_TIMEOUT = 2,   /* a peer did not answer before the deadline */
  RC_PEER_LOST = 3, /* a peer's process ended, or left the communicator */
  RC_TRANSPORT = 4, /* a link or the operating system failed */
  RC_MISMATCH = 5,  /* ranks make different calls, or one call with different arguments */
  RC_INTERNAL = 6,  /* a defect of ringcoll */
  RC_ABORTED = 7,   /* this or another rank called ringcoll_comm_abort, or interrupted a call, or
                       closed the communicator during one */
  /* Since revision 2. */
  RC_TOO_LONG = 8, /* a message is longer than the receive's buffer: receive it again with a larger
                      one; the communicator stays usable */
  /* Since revision 3. */
  RC_GONE = 9, /* a region, or a version of a store, is not there any more */
  RC_REFUSED =
      10 /* the other end does not allow it: a wrong key, or a region that is not writable */
} rc_status;

typedef enum rc_dtype {
  RC_UINT8 = 0,
  RC_INT8 = 1,
  RC_UINT16 = 2,
  RC_INT16 = 3,
  RC_UINT32 = 4,
  RC_INT32 = 5,
  RC_UINT64 = 6,
  RC_INT64 = 7,
  RC_FLOAT16 = 8,  /* IEEE 754 binary16; combined in float32 */
  RC_BFLOAT16 = 9, /* the upper half of a float32; combined in float32 */
  RC_FLOAT32 = 10,
  RC_FLOAT64 = 11,
  RC_BOOL = 12 /* one byte, 0 or 1; sum and max mean "or", product and min mean "and" */
} rc_dtype;
#define RC_DTYPE_COUNT 13

typedef enum rc_op {
  RC_SUM = 0,
  RC_AVERAGE = 1, /* the sum times 1/size; integers are truncated towards zero */
  RC_MIN = 2,
  RC_MAX = 3,
  RC_PRODUCT = 4,
  RC_BIT_AND = 5, /* integers and bool */
  RC_BIT_OR = 6   /* integers and bool */
} rc_op;
#define RC_OP_COUNT 7

typedef enum rc_collective {
  RC_ALLREDUCE = 0,
  RC_ALLGATHER = 1,
  RC_REDUCE_SCATTER = 2,
  RC_BROADCAST = 3,
  RC_REDUCE = 4,
  RC_GATHER = 5,
  RC_SCATTER = 6,
  RC_ALLTOALL = 7,
  RC_BARRIER = 8,
  /* Since revision 2. */
  RC_SCAN = 9,   /* rank r gets the combination of ranks 0 to r */
  RC_EXSCAN = 10 /* rank r gets that of ranks 0 to r-1, and rank 0 the neutral element */
} rc_collective;
#define RC_COLLECTIVE_COUNT 11

typedef struct rc_comm rc_comm;
typedef struct rc_request rc_request;

/* A contiguous tensor of the caller. Its memory is borrowed until the call has completed. Input and
 * output may overlap only in the ways that rc_call lists. */
typedef struct rc_buffer {
  const void* input;
  void* output;
  int64_t count; /* in elements; rc_call says of what, for each collective */
} rc_buffer;

/* Completion callback of a call from ringcoll_start(), or of a message from ringcoll_isend() or
 * ringcoll_irecv(). The library calls it exactly once for each of them, however it ended. `status`
 * is what ringcoll_wait() returns for the request. If it is not RC_OK, ringcoll_error_message() and
 * ringcoll_error_rank() give the details.
 *
 * When: as soon as the call has ended. Callbacks of one communicator's calls come in the order in
 * which the calls were started; callbacks of messages come in any order. The callback may run
 * before ringcoll_start() has returned; *request is set by then. In other threads, ringcoll_wait()
 * and ringcoll_request_free() return after the callback has returned.
 *
 * Where: on a thread of the library, on a thread that waits, or on the destroying thread. A
 * callback of a call may run in any thread that waits for that call or a later one (ringcoll_wait),
 * or runs a later one (ringcoll_run). A callback of a message (rc_message.done) may run in a thread
 * that waits for that very request. The library holds no lock meanwhile. Calls that were started
 * later wait until the callback returns, and so do messages that no thread waits for. So it must
 * not block for long, and it must not throw. It must not need a lock that a thread holds while it
 * waits.
 *
 * What it may do: anything with other communicators. With its own communicator it may start calls
 * and messages, abort, query and destroy. A destroy takes place on a thread of the library once the
 * callback has returned, and calls started meanwhile are refused. These return RC_INVALID_ARGUMENT,
 * since they would wait for this very thread: running a call, a blocking send or receive, split,
 * shrink, and waiting for a request that has not ended (a timeout_s of 0 is allowed). `request`
 * itself has ended: ringcoll_wait() returns its status at once, and the callback may free it if no
 * other thread does. Another request that has not ended is not freed here; the log has a warning.
 */
typedef void (*rc_done_fn)(void* state, rc_request* request, rc_status status);

/* Asks whether a blocking call should end, for instance because the user has pressed Ctrl-C. A
 * non-zero result ends the call with RC_ABORTED. While ringcoll_run(), ringcoll_send() and
 * ringcoll_recv() wait for other ranks, they call it about every 100 ms. They do so in the thread
 * that called them, without a lock of the library. After a non-zero result it is not called again.
 * Since revision 2.
 *
 * An interrupted collective poisons the communicator with RC_ABORTED, so that all ranks learn at
 * once that this rank has left the call. A message that the other end has not matched is withdrawn,
 * as at its deadline, and the communicator stays usable. A message that both ends have begun
 * poisons the communicator. A call that ends meanwhile may return RC_OK.
 *
 * The function must not throw. It may do with any communicator what rc_done_fn may do, except that
 * it must not destroy its own. */
typedef int (*rc_interrupted_fn)(void* state);

/* clang-format off */
/* One collective call.
 *
 *   collective      buffers  input (elements)          output (elements)            counts
 *   ALLREDUCE       any      count                     count                        -
 *   BROADCAST       any      count, read on root       count (root: may be NULL)    -
 *   REDUCE          any      count                     count, on root               -
 *   ALLGATHER       1        counts[rank]              sum(counts), by rank         size, or NULL
 *   REDUCE_SCATTER  1        sum(counts), by rank      counts[rank]                 size, or NULL
 *   GATHER          1        counts[rank]              sum(counts), on root         size, or NULL
 *   SCATTER         1        sum(counts), on root      counts[rank]                 size, or NULL
 *   ALLTOALL        1        sum(counts), by           sum(recv_counts), by         size, or NULL
 *                            destination               source
 *   BARRIER         0        -                         -                            -
 *   SCAN, EXSCAN    any      count                     count                        -
 *
 * SCAN and EXSCAN combine in the order of ranks, and take every op but RC_AVERAGE. The output of
 * EXSCAN on rank 0 is the neutral element of the op, to which no factor applies: 0 for sum and bit
 * or, 1 for product, all bits for bit and, and for min and max the largest and the least value of
 * the type (infinities of floats; of bool, 1 and 0).
 *
 * counts == NULL: every chunk has the buffer's `count` elements. Several buffers are one vector,
 * which the library fuses: the caller need not copy them together. For ALLTOALL, `counts` are what
 * this rank sends to each rank and `recv_counts` what it receives. counts[rank] equals
 * recv_counts[rank], and either all ranks pass both or none does. For the other collectives,
 * `counts` are the same on every rank.
 *
 * All ranks must agree on: collective, dtype, op, root, prescale, postscale, counts, and the total
 * elements of all buffers. If they do not, all of them get RC_MISMATCH within a fraction of a
 * second, and the error names what differs. A rank that receives nothing in the call, such as the
 * root of a broadcast, may return RC_OK first and get the error from a later call.
 *
 * In place: input == output for vectors, and for ALLTOALL if counts equal recv_counts. For the
 * other collectives, the rank's own chunk lies at its position among all chunks. Any other overlap
 * of input and output is refused. */
/* clang-format on */
typedef struct rc_call {
  size_t struct_size;
  rc_collective collective;
  rc_dtype dtype;
  rc_op op;
  int32_t root;
  const rc_buffer* buffers;
  int64_t buffer_count;
  const int64_t* counts;
  const int64_t* recv_counts;
  double prescale;  /* multiplies each input element before combining; 0 means 1, -0.0 means 0 */
  double postscale; /* multiplies each output element after combining; 0 means 1, -0.0 means 0 */
  /* Since revision 2. */
  double timeout_s; /* the whole call's deadline (RC_TIMEOUT), in seconds from when it is the oldest
                       unfinished call; 0 = that of rc_comm_options, for each wait by itself;
                       infinity = none. Ranks may pass different values */
  rc_done_fn done;  /* for ringcoll_start, may be NULL; ringcoll_run refuses it */
  void* done_state; /* first argument of done */
  rc_interrupted_fn interrupted; /* for ringcoll_run, may be NULL; ringcoll_start refuses it */
  void* interrupted_state;       /* argument of interrupted */
} rc_call;

/* An allgather by the caller's own means, such as MPI_Allgather: fills `all` with one blob of
 * `bytes` bytes from every rank, in rank order. Every rank passes the same `bytes`. Returns 0, or
 * non-zero on failure. It is called in the thread that creates the communicator. */
typedef int (*rc_exchange_fn)(void* state, const void* mine, size_t bytes, void* all);

/* A message from one rank to another: the argument of ringcoll_send(), ringcoll_recv(),
 * ringcoll_isend() and ringcoll_irecv(). Since revision 2.
 *
 * A message is bytes with a tag. Messages are matched by source and tag within one communicator,
 * and are independent of its collectives: any thread may send and receive at any time, in any
 * order, while calls are in flight. A receive takes the oldest message that matches it, and a
 * message goes to the oldest receive that matches it. Messages of one sender that match one receive
 * arrive in the order in which they were sent, whatever their lengths. A rank may send to itself.
 *
 * A message may be shorter than the receive's buffer; rc_message_info has its length. If the
 * message is longer, the receive ends with RC_TOO_LONG, rc_message_info has the length, and the
 * message stays the next one to be received.
 *
 * A send has ended when `data` may be written again. That does not mean that the message has been
 * received. A short message is eager: the receiver's library keeps it until its receive is posted,
 * as long as its space for unexpected messages of this sender lasts. A long message (rendezvous) is
 * sent once its receive is posted. So two ranks that both send before they receive may block.
 *
 * A message that the other end has not matched by its deadline ends with RC_TIMEOUT and is
 * withdrawn: `data` is the caller's again, and later messages are matched as if this one had never
 * been posted. The communicator stays usable. (The receiver may have got a send that it matched at
 * the very deadline.) A message of ringcoll_isend() with timeout_s 0 has no such deadline: it stays
 * pending until its receive is posted.
 *
 * A message that both ends have begun may make no progress for the length of the deadline. It then
 * ends with RC_TIMEOUT, blames the peer and poisons the communicator. One exception: if all bytes
 * of a send are in the channel and the peer is alive, the send goes on after its deadline. */
#define RC_ANY_SOURCE (-1)
#define RC_ANY_TAG (-1)
typedef struct rc_message {
  size_t struct_size;
  void* data;       /* borrowed until the send or receive has ended; a send only reads it */
  int64_t bytes;    /* length of the message; for a receive, of the buffer */
  int32_t peer;     /* rank of the destination or source; a receive may pass RC_ANY_SOURCE */
  int32_t tag;      /* 0 to 2^31-1; a receive may pass RC_ANY_TAG */
  double timeout_s; /* the deadline, in seconds; 0 = that of rc_comm_options, but for ringcoll_isend
                       none until its receive is posted; infinity = none */
  rc_done_fn done;  /* for ringcoll_isend and ringcoll_irecv, may be NULL; the others refuse it */
  void* done_state; /* first argument of done */
  rc_interrupted_fn interrupted; /* for ringcoll_send and ringcoll_recv, may be NULL; the others
                                    refuse it */
  void* interrupted_state;       /* argument of interrupted */
} rc_message;

/* The message that a receive has matched, also after RC_TOO_LONG. The caller sets struct_size; the
 * library fills in as many bytes. */
typedef struct rc_message_info {
  size_t struct_size;
  int32_t source; /* -1: no message was matched */
  int32_t tag;
  int64_t bytes;
} rc_message_info;

typedef struct rc_comm_options {
  size_t struct_size;
  int32_t rank;
  int32_t size;      /* at most 2^20 */
  const char* store; /* tcp://host:port, file:///dir, horovod://host:port/scope, local://name; not
                        used with exchange */
  const char* name;  /* distinguishes communicators in one store; NULL = "world" */
  rc_exchange_fn exchange; /* replaces the store; may be NULL */
  void* exchange_state;    /* first argument of exchange */
  double timeout_s; /* deadline of every wait in seconds; 0 = RINGCOLL_TIMEOUT_S, infinity = none */
} rc_comm_options;

/* The library's version, "major.minor.patch", as a static string, and the RINGCOLL_ABI_VERSION and
 * RINGCOLL_ABI_REVISION that it was built with. */
RINGCOLL_API const char* ringcoll_version(void);
RINGCOLL_API int ringcoll_abi_version(void);
RINGCOLL_API int ringcoll_abi_revision(void);

/* Describes the last failed call of this thread. The string is valid until the thread's next failed
 * call. Never NULL. */
RINGCOLL_API const char* ringcoll_error_message(void);
/* The rank that the last error of this thread blames, or -1. */
RINGCOLL_API int ringcoll_error_rank(void);

/* Creates a communicator. Collective over all its ranks: blocks until all are there or the deadline
 * passes. On failure *comm is NULL; the same holds for *sub and *rest below. */
RINGCOLL_API rc_status ringcoll_comm_create(const rc_comm_options* options, rc_comm** comm);
/* Makes a communicator of `count` of comm's ranks, in the given order. Collective over comm: every
 * rank of comm passes the list of its own group. A rank in no group passes count = 0 and gets NULL.
 * `name` appears in messages; NULL = "split". A bad argument of one rank is refused on all ranks.
 * RC_MISMATCH: the ranks of a group pass different lists or orders.
 *
 * A rank may be in a limited number of communicators that were split off one job at a time: 65,536
 * divided by the ranks of its machine, but at most 8,192 and at least 64. The limit is 1,024 under
 * `ulimit -v` or `ulimit -f`, and lower with RDMA. A split beyond it is refused on all ranks. */
RINGCOLL_API rc_status ringcoll_comm_split(rc_comm* comm, const int32_t* ranks, int32_t count,
                                           const char* name, rc_comm** sub);
/* Makes a communicator of the surviving ranks of comm, in their order, without a store or a new
 * process. Survivors use it after a loss, when calls on comm fail with RC_PEER_LOST. On a
 * communicator that has not failed it makes another one of all its ranks. `name` appears in
 * messages; NULL = "shrink".
 *
 * Collective over the survivors: each of them calls it, equally often, within comm's deadline.
 * RC_TIMEOUT names a rank that has not called; the next call continues the same attempt. All
 * survivors get a communicator of the same ranks. It may contain a rank that has ended meanwhile;
 * the next call on it then fails. A rank that the others consider lost gets RC_PEER_LOST.
 * RC_ABORTED: this rank called ringcoll_comm_abort() for comm meanwhile. RC_INVALID_ARGUMENT: it
 * was called in a callback of comm.
 *
 * The caller still destroys comm, before or after `rest`. The result counts towards the limit of
 * ringcoll_comm_split(). */
RINGCOLL_API rc_status ringcoll_comm_shrink(rc_comm* comm, const char* name, rc_comm** rest);
/* Tells the peers that this rank leaves, ends the library's threads, and frees the communicator.
 * Outstanding requests end with RC_ABORTED. NULL is allowed. */
RINGCOLL_API void ringcoll_comm_destroy(rc_comm* comm);
/* Poisons the communicator on all ranks with RC_ABORTED and `reason`. Calls in flight return at
 * once. */
RINGCOLL_API void ringcoll_comm_abort(rc_comm* comm, const char* reason);
RINGCOLL_API int ringcoll_comm_rank(const rc_comm* comm);
RINGCOLL_API int ringcoll_comm_size(const rc_comm* comm);
/* Describes the communicator as JSON. Keys: name, rank, size, hosts, levels, topology (the
 * source of the topology), network, ring_order, peers (host, pid, NUMA node, groups, transport
 * and port of each), and costs (of each level's links, their source, and how long measuring
 * took). Counters follow: calls, bytes, copies, waits, messages with tags and rejected
 * connections. The string is malloc'ed; free it with ringcoll_free. */
RINGCOLL_API rc_status ringcoll_comm_stats(rc_comm* comm, char** json);

/* Runs a call and returns when it has ended. The calling thread executes it, unless earlier calls
 * are still queued or running. */
RINGCOLL_API rc_status ringcoll_run(rc_comm* comm, const rc_call* call);
/* Starts a call. `call` and its arrays are copied; the buffers are borrowed. A thread that waits
 * for this call or a later one executes it. While no thread waits, a thread of the library does,
 * which the first started call creates. Several calls may be in flight. Calls that share memory
 * take effect one after another, in the order in which they were started. A refused call has not
 * started: *request is NULL, and `done` is not called. On a poisoned communicator a call does
 * start, and ends with the first error. */
RINGCOLL_API rc_status ringcoll_start(rc_comm* comm, const rc_call* call, rc_request** request);
/* Send or receive a message; see rc_message. Since revision 2. ringcoll_send() and ringcoll_recv()
 * return when the send or receive has ended; `info` may be NULL. ringcoll_isend() and
 * ringcoll_irecv() return at once: they copy `message`, borrow its data, and give a request, which
 * is waited for and freed as that of a call. A refused message has not begun: *request is NULL, and
 * `done` is not called. On a poisoned communicator every message is refused with the first error.
 *
 * A thread that waits for a message makes progress on all messages of the communicator. A thread of
 * the library does that while no thread waits; the first ringcoll_isend() or ringcoll_irecv()
 * creates it. */
RINGCOLL_API rc_status ringcoll_send(rc_comm* comm, const rc_message* message);
RINGCOLL_API rc_status ringcoll_recv(rc_comm* comm, const rc_message* message,
                                     rc_message_info* info);
RINGCOLL_API rc_status ringcoll_isend(rc_comm* comm, const rc_message* message,
                                      rc_request** request);
RINGCOLL_API rc_status ringcoll_irecv(rc_comm* comm, const rc_message* message,
                                      rc_request** request);
/* What the receive of a ringcoll_irecv() request has matched. RC_INVALID_ARGUMENT before the
 * receive has ended, and for other requests; its `done` may call this. */
RINGCOLL_API rc_status ringcoll_received(rc_request* request, rc_message_info* info);
/* Waits until the request has ended and its `done` has returned. Then *done is 1, and the result
 * is the request's status. timeout_s < 0: only the call's own deadline limits the wait.
 * timeout_s 0: a poll. If timeout_s passes first, the request goes on, *done is 0 and the result
 * RC_OK. A refused wait (see rc_done_fn) also leaves the request going on: *done is 0 and the
 * result RC_INVALID_ARGUMENT. While it waits, the thread may execute calls and run their
 * callbacks, which the limit does not shorten. */
RINGCOLL_API rc_status ringcoll_wait(rc_request* request, double timeout_s, int* done);
/* Frees the request. Waits for it first if it has not ended. NULL is allowed. */
RINGCOLL_API void ringcoll_request_free(rc_request* request);

/* Deltas between two versions of a tensor, and checksums. Since revision 3. These functions need no
 * communicator and work in the calling thread, at about the speed of memory. Tensors may lie at any
 * address; an argument may be NULL if its length is 0. Memory that a function reads must not change
 * meanwhile, and memory that it writes must not overlap any that it reads.
 *
 * ringcoll_delta_make() writes what turns the tensor `before` into the tensor `now`, both of
 * `bytes` bytes, to `out`, and stores its length. Elements of element_bytes (1, 2, 4 or 8) are
 * compared bit for bit, so the delta is without loss for every type. Each changed element takes
 * element_bytes + 2 bytes; where many have changed, blocks of 65,536 elements are copied whole. So
 * a delta has at most bytes + bytes / 16384 + 64 bytes. RC_TOO_LONG: it is longer than `capacity`;
 * *length is 0, and `out` has no meaning. The function stops early then. So `capacity` is best what
 * is still cheaper than the whole tensor.
 *
 * A delta may be sent and stored; later revisions can apply it. ringcoll_delta_apply() turns
 * `tensor`, which has the bytes of `before`, into `now`. RC_INVALID_ARGUMENT: the delta is damaged,
 * or belongs to a tensor of another length. It is verified first, so the tensor is then unchanged;
 * that holds for every content of `delta`. A delta that is applied to another tensor than `before`
 * is not noticed: compare ringcoll_checksum() of the result. */
RINGCOLL_API rc_status ringcoll_delta_make(const void* before, const void* now, size_t bytes,
                                           int element_bytes, void* out, size_t capacity,
                                           size_t* length);
RINGCOLL_API rc_status ringcoll_delta_apply(void* tensor, size_t bytes, const void* delta,
                                            size_t length);
/* Sums `bytes` bytes, to find what was damaged by accident. The sum is the XXH3-64 of the XXH3-64
 * sums of all chunks of 131,072 bytes, as little-endian numbers in order; the last chunk may be
 * shorter. Since revision 3. */
RINGCOLL_API rc_status ringcoll_checksum(const void* data, size_t bytes, uint64_t* sum);
/* Copies `bytes` bytes and stores their ringcoll_checksum(), in about the time of the copy. Since
 * revision 3. */
RINGCOLL_API rc_status ringcoll_copy_checksum(void* to, const void* from, size_t bytes,
                                              uint64_t* sum);

/* Rules, by which a push changes a row of values. Since revision 3. `rule` is a JSON object: its
 * "rule" is sum, assign, sgd, adagrad, adam, adamw, weighted_average or custom (tables.h), and its
 * other keys are the parameters of that rule, such as "lr"; those that are left out have defaults.
 * Results do not depend on the processor. "combine" of assign says what becomes of pushes that
 * count as one: "last" (the default), or "sum".
 *
 * ringcoll_rule_check() checks the rule. *json is malloc'ed, to be freed with ringcoll_free, and
 * has "rule", the rule with all its parameters, and "state_slots": so many arrays of state a row
 * has. */
RINGCOLL_API rc_status ringcoll_rule_check(const char* rule, char** json);
/* Applies a push to a row: `value`, `push` and each of `state` have `count` elements. `state` is an
 * array of as many pointers as the rule has arrays of state, or NULL if it has none. State is
 * float64 for float64 values and float32 for others; for a new row it is 0, or adagrad's
 * initial_accumulator_value. A push has the type of the values; those of float16 and bfloat16 also
 * take float32. *pushes counts the pushes of the row, and *weight_sum their weights for
 * weighted_average; both are 0 for a new row. `weight` is 1 for other rules. Arrays may lie at any
 * address, and must not overlap. */
RINGCOLL_API rc_status ringcoll_rule_apply(const char* rule, rc_dtype dtype, int64_t count,
                                           void* value, void* const* state, size_t state_slots,
                                           int64_t* pushes, double* weight_sum, rc_dtype push_dtype,
                                           const void* push, double weight);

/* Describes the library as JSON; needs no communicator. Keys: version, release, abi, abi_revision,
 * simd (the instruction set in use), transports (name, help, automatic, usable, reason, found: what
 * the transport found on this machine), schedules (collective, name, summary, cost, where: on which
 * clusters the schedule is offered), knobs (name, type, default, range, owner, agreement, help,
 * value) and costs (the file of RINGCOLL_COSTS, or the error in it). The string is malloc'ed; free
 * it with ringcoll_free. */
RINGCOLL_API rc_status ringcoll_info(char** json);
/* Estimates the time of collectives on a described cluster, by the prices that choose schedules in
 * a job (docs/algorithms.md, "What a schedule costs"). Needs no communicator and reads no
 * environment variables.
 *
 * The request is a JSON object:
 *   collective          "allreduce", …
 *   dtype               "float32", …; optional, by default float32
 *   levels              array of 1 to 16 levels, the smallest groups first: {"level": "host",
 *                       "ranks": 4, "latency_us", "rank_bytes_per_us", "group_bytes_per_us"}.
 *                       "ranks" are those of one group, a multiple of the level before. The last
 *                       level has all ranks, at most 16,384, and need not be a multiple. An omitted
 *                       number is the one assumed for unmeasured links, but group_bytes_per_us is
 *                       then rank_bytes_per_us if that is given. Levels below hosts come first and
 *                       are named "socket", "numa_node" or "cache". The level of hosts may have
 *                       "ports": how many network ports the ranks of a host share. The next
 *                       level's group_bytes_per_us is what all ports of a host send together
 *   sizes               array of 1 to 1,000 sizes of the whole vector, in bytes, at most 2^50
 *   algorithm, segment_bytes, slots, arena_bytes     like the knobs; optional
 *   combined_bytes_per_us                            what one core reduces; optional
 *   crowded             true: hosts have more ranks than cores; optional
 *   messages            true: also list all messages of the row that algorithm names, at most four
 *                       million; optional
 *
 * A bad request gives RC_INVALID_ARGUMENT and leaves *json untouched; ringcoll_error_message()
 * names the field or knob. The answer is a JSON object with collective, dtype, ranks, hosts,
 * levels, slots and sizes. Each entry of sizes has bytes, chosen (a row), bound_us (the least time
 * that a host's port needs; null on one host and for a barrier) and rows. Each row has name,
 * microseconds (null: the row has too many steps to be priced), piece_bytes and pieces. Rows that
 * are not offered on this cluster are left out. With messages, rounds has one array for each round:
 * from, to, share of the vector, from, to, … The string is malloc'ed; free it with ringcoll_free.
 */
RINGCOLL_API rc_status ringcoll_simulate(const char* request, char** json);
RINGCOLL_API void ringcoll_free(void* pointer);

#ifdef __cplusplus
}
#endif
#endif /* RINGCOLL_RINGCOLL_H_ */
