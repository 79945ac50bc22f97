/* ringcoll: collective communication over RDMA, shared memory and TCP.
 *
 * The only installed header: a C ABI with opaque handles. It has four parts: a communicator
 * (create, query, abort, destroy), a call (what to compute, on which buffers), a message (from one
 * rank to another), and a request (a call or a message in flight).
 *
 * Errors: a function that can fail returns an rc_status; ringcoll_error_message() of the same
 * thread then says what was being done, the cause and the remedy. After RC_TIMEOUT, RC_PEER_LOST,
 * RC_TRANSPORT or RC_MISMATCH the communicator is poisoned: every later call on it returns the same
 * first error. Destroy it and create another. (One exception, at rc_message: a receive that no
 * message has matched.)
 *
 * Threads: any thread may call any function, except that a communicator must not be destroyed while
 * a call on it runs. All ranks must submit their calls on one communicator in the same order;
 * messages have none.
 *
 * fork(2): a process may fork at any time. In the child, calls with what its parent has made return
 * RC_INVALID_ARGUMENT, abort, destroy and free do nothing, and descriptors of the library are gone,
 * so that peers hear of the parent's end; it may make communicators of its own.
 *
 * ABI rule: RINGCOLL_ABI_VERSION changes when a caller built against an older header would break; a
 * caller may refuse to run with a library of another. RINGCOLL_ABI_REVISION counts what was added
 * since; a library works with callers of every revision of its version, and a caller that needs
 * something of revision N asks for ringcoll_abi_revision() >= N (a library without that function is
 * of revision 1). A revision may add functions, values at the end of an enumeration, keys of JSON,
 * and fields at the end of a struct that begins with struct_size; nothing else changes. rc_buffer,
 * which is passed in arrays, has no struct_size and never grows.
 *
 * struct_size is sizeof(the struct) where the caller was compiled. A shorter struct is one of an
 * older revision: the fields that it lacks are 0. A longer one is of a newer revision, and accepted
 * as long as what this library does not know is 0. A zeroed field means "default": what there was
 * before the field.
 */
#ifndef RINGCOLL_RINGCOLL_H_
#define RINGCOLL_RINGCOLL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RINGCOLL_ABI_VERSION 1
#define RINGCOLL_ABI_REVISION 2
#define RINGCOLL_API __attribute__((visibility("default")))

typedef enum rc_status {
  RC_OK = 0,
  RC_INVALID_ARGUMENT =
      1,            /* the call was refused, nothing was sent; the communicator is still good */
  RC_TIMEOUT = 2,   /* a peer did not answer before the deadline */
  RC_PEER_LOST = 3, /* a peer's process ended, or left the communicator */
  RC_TRANSPORT = 4, /* a link or the operating system failed */
  RC_MISMATCH = 5,  /* ranks make different calls, or the same with other arguments */
  RC_INTERNAL = 6,  /* a defect of ringcoll */
  RC_ABORTED = 7,   /* ringcoll_comm_abort was called, or a call interrupted, here or on another
                       rank */
  /* Since revision 2. */
  RC_TOO_LONG = 8 /* a message is longer than the buffer of the receive: it can be received with a
                     larger one; the communicator is still good */
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
  RC_BFLOAT16 = 9, /* upper half of a float32; combined in float32 */
  RC_FLOAT32 = 10,
  RC_FLOAT64 = 11,
  RC_BOOL = 12 /* one byte, 0 or 1; sum and max mean "or", product and min mean "and" */
} rc_dtype;
#define RC_DTYPE_COUNT 13

typedef enum rc_op {
  RC_SUM = 0,
  RC_AVERAGE = 1, /* sum, then times 1/size; integers are truncated towards zero */
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
  RC_BARRIER = 8
} rc_collective;
#define RC_COLLECTIVE_COUNT 9

typedef struct rc_comm rc_comm;
typedef struct rc_request rc_request;

/* A tensor of the caller. Input and output may overlap only as rc_call says. Contiguous.
 * Borrowed until the call has completed. */
typedef struct rc_buffer {
  const void* input;
  void* output;
  int64_t count; /* elements; its meaning for each collective is at rc_call */
} rc_buffer;

/* Says that a call that ringcoll_start() has started, or a message that ringcoll_isend() or
 * ringcoll_irecv() has, is over: called exactly once for each, however it ended, with what
 * ringcoll_wait() returns of it; if that is not RC_OK, ringcoll_error_message() and
 * ringcoll_error_rank() say more.
 *
 * When: as soon as the call has ended, in the order in which calls of a communicator were started.
 * It may be before ringcoll_start() has returned; *request is set by then. In other threads
 * ringcoll_wait() and ringcoll_request_free() return after it has.
 *
 * Where: on the thread that executed the call, the communicator's worker; for calls that had not
 * begun when their communicator was destroyed, on the thread that destroys it. Of a message
 * (rc_message.done) on a thread of the library, on one that waits for that very request, or on the
 * one that destroys the communicator; messages have no order in this. Under no lock of the library.
 * Calls started later, and messages that nobody waits for, wait for it, so it must not block for
 * long, nor throw.
 *
 * What it may do: anything with other communicators. With its own: start calls, abort, query, and
 * destroy it (which a thread of the library then does once it has returned; calls that it starts
 * while it is destroyed are refused). To run a call, a send or a receive, to split, and to wait for
 * a request that has not ended are RC_INVALID_ARGUMENT: they would wait for this very thread.
 * `request` has ended: ringcoll_wait() returns its status at once, and it may be freed here, if
 * nowhere else. Another that has not ended is not freed. */
typedef void (*rc_done_fn)(void* state, rc_request* request, rc_status status);

/* Says whether a blocking call is to end, for instance because the user has pressed Ctrl-C:
 * non-zero ends it with RC_ABORTED. ringcoll_run(), ringcoll_send() and ringcoll_recv() call it
 * about every 100 ms, in the thread that has called them and under no lock of the library, while
 * they wait for other ranks. Once it has returned non-zero it is not called again. Since
 * revision 2.
 *
 * An interrupted collective poisons the communicator with RC_ABORTED, so all ranks learn at once
 * that this rank has left the call. A message that the other end has not met is withdrawn, as at
 * its deadline, and the communicator is still good. A message that both ends have begun poisons. A
 * call that has ended meanwhile may return RC_OK.
 *
 * It must not throw. It may do with this communicator and with others what rc_done_fn may, except
 * that it must not destroy this one. */
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
 *
 * counts == NULL: all are `count` of the buffer. Several buffers are one vector (they are fused:
 * packed together, no copy by the caller). `counts` of ALLTOALL are this rank's send counts,
 * `recv_counts` what it receives, and all ranks give them or none does; elsewhere `counts` are the
 * same on every rank.
 *
 * Alike on all ranks: collective, dtype, op, root, prescale, postscale, counts, and the elements of
 * all buffers together. Ranks that disagree get RC_MISMATCH, all of them, within a fraction of a
 * second; the error names what differs. Where a rank learns nothing of the others by the call
 * itself (the root of a broadcast), that may be after the call has ended well on it.
 *
 * In place: input == output for vectors and for ALLTOALL with equal counts and recv_counts; the
 * own chunk at its place among all chunks for the others. */
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
  double prescale;  /* factor on each input element before combining; 0 means 1, -0.0 means 0 */
  double postscale; /* factor on each output element after combining; 0 means 1, -0.0 means 0 */
  /* Since revision 2. */
  double timeout_s; /* all waits of this call end (RC_TIMEOUT) so many seconds after it began to
                       execute, when those before it had ended; 0 = as of rc_comm_options, where
                       each wait has that time for itself; infinity = none. Ranks may pass different
                       ones */
  rc_done_fn done;  /* of ringcoll_start, where it is not NULL; ringcoll_run refuses it */
  void* done_state; /* first argument of done */
  rc_interrupted_fn interrupted; /* of ringcoll_run, where it is not NULL; ringcoll_start refuses
                                    it */
  void* interrupted_state;       /* argument of interrupted */
} rc_call;

/* Gathers one blob of every rank on every rank, in rank order: `all` has room for size blobs of
 * `bytes` each; every rank passes the same `bytes`. Returns 0, or non-zero on failure. Called from
 * the thread that creates. */
typedef int (*rc_exchange_fn)(void* state, const void* mine, size_t bytes, void* all);

/* A message from one rank to another, with a tag by which receives tell it from others: what
 * ringcoll_isend(), ringcoll_irecv() and their blocking kind are asked for. Since revision 2.
 *
 * Messages are bytes. They are matched by source and tag within one communicator, and have nothing
 * to do with its collectives: any thread may send and receive at any time, in any order, beside
 * calls. A receive gets the oldest message that it fits, and a message the oldest receive; those of
 * one sender that a receive fits arrive in the order in which they were sent, whatever their
 * lengths. A rank may send to itself.
 *
 * A message may be shorter than the receive's buffer: rc_message_info tells. One that is longer is
 * RC_TOO_LONG of that receive, rc_message_info says how long it is, and it stays the next to be
 * received.
 *
 * A send has ended when `data` may be written again, which says nothing of the receiver: a short
 * message is kept by the receiver's library, as long as that keeps not too many of this sender; a
 * long one is sent when its receive is there. So two ranks that both send before they receive may
 * wait for one another.
 *
 * A send or receive that the other end has not met by its deadline ends with RC_TIMEOUT, and
 * nothing else is touched: that is the one RC_TIMEOUT after which a communicator is still good. It
 * is withdrawn: `data` is the caller's again, and what comes later is matched as if it had never
 * been asked for. (A send that its receive met at the very deadline may have been received.) A send
 * that was started, and names no timeout_s, has no such deadline: it stays pending. One that the
 * peer has only to take out of its channel may end later than its deadline, while the peer lives.
 * A message that both ends have begun, and that does not go on for the time of the deadline, is the
 * peer's fault: RC_TIMEOUT, and the communicator is poisoned. */
#define RC_ANY_SOURCE (-1)
#define RC_ANY_TAG (-1)
typedef struct rc_message {
  size_t struct_size;
  void* data;       /* borrowed until the message has been sent or received; of a send only read */
  int64_t bytes;    /* of a receive: room for so many */
  int32_t peer;     /* the destination; the source, or RC_ANY_SOURCE */
  int32_t tag;      /* 0 to 2^31-1; of a receive RC_ANY_TAG, too */
  double timeout_s; /* the deadline, in seconds; 0 = as of rc_comm_options, and of ringcoll_isend
                       none until its receive is posted; infinity = none */
  rc_done_fn done;  /* of ringcoll_isend and ringcoll_irecv, where it is not NULL */
  void* done_state; /* first argument of done */
  rc_interrupted_fn interrupted; /* of ringcoll_send and ringcoll_recv, where it is not NULL */
  void* interrupted_state;       /* argument of interrupted */
} rc_message;

/* What was received, also with RC_TOO_LONG; filled in as far as struct_size goes. */
typedef struct rc_message_info {
  size_t struct_size;
  int32_t source; /* -1: there was no message */
  int32_t tag;
  int64_t bytes;
} rc_message_info;

typedef struct rc_comm_options {
  size_t struct_size;
  int32_t rank;
  int32_t size;      /* at most 2^20 */
  const char* store; /* tcp://host:port, file:///dir, horovod://host:port/scope, local://name; NULL
                        with exchange */
  const char* name;  /* distinguishes communicators in one store; NULL = "world" */
  rc_exchange_fn exchange; /* instead of a store */
  void* exchange_state;
  double timeout_s; /* deadline of every wait in seconds; 0 = RINGCOLL_TIMEOUT_S, infinity = none */
} rc_comm_options;

/* The version of the library, "major.minor.patch", and the RINGCOLL_ABI_VERSION and
 * RINGCOLL_ABI_REVISION that it was built with. Static. */
RINGCOLL_API const char* ringcoll_version(void);
RINGCOLL_API int ringcoll_abi_version(void);
RINGCOLL_API int ringcoll_abi_revision(void);

/* What the last failed call of this thread was about; valid until its next failed call. Never NULL.
 */
RINGCOLL_API const char* ringcoll_error_message(void);
/* The rank that the last error of this thread blames, or -1. */
RINGCOLL_API int ringcoll_error_rank(void);

/* Creates a communicator: collective over all its ranks, blocks until all are there or the deadline
 * passes. Where it fails, *comm is NULL; so are *sub and *rest below. */
RINGCOLL_API rc_status ringcoll_comm_create(const rc_comm_options* options, rc_comm** comm);
/* A communicator of `count` of comm's ranks, in the order given. Collective over comm: every rank
 * of comm calls it, with the list of the group it belongs to; a rank that belongs to none passes
 * count = 0 and gets NULL. RC_MISMATCH: ranks of a group name others, or another order. A rank may
 * be in 65,536 that were split off one job at a time, divided by the ranks of its machine: but in
 * 8,192 at most and 64 at least, in 1,024 where `ulimit -v` or `ulimit -f` is set, and in fewer
 * with RDMA. One more is refused on all ranks. */
RINGCOLL_API rc_status ringcoll_comm_split(rc_comm* comm, const int32_t* ranks, int32_t count,
                                           const char* name, rc_comm** sub);
/* A communicator of those of comm's ranks that are left, in their order: after a loss, when calls
 * of comm fail with RC_PEER_LOST, the others go on with it. Collective over those: each calls it,
 * once for each time that the others do, and the deadline of comm counts (RC_TIMEOUT names who has
 * not come; the next call goes on with the same attempt). Needs no store and no new process. All
 * get a communicator of the same ranks; it may hold one that has ended meanwhile, which its next
 * call tells. On a communicator that has not failed it makes another of all its ranks. comm is to
 * be destroyed as ever, before `rest` or after. A rank whom others hold for lost gets RC_PEER_LOST.
 * Counts as one of those of ringcoll_comm_split(). Ends with RC_ABORTED on a rank that calls
 * ringcoll_comm_abort() for comm meanwhile. Not from a callback of comm. */
RINGCOLL_API rc_status ringcoll_comm_shrink(rc_comm* comm, const char* name, rc_comm** rest);
/* Says goodbye to the peers, ends the threads, frees. Outstanding requests end with RC_ABORTED.
 * NULL is allowed. */
RINGCOLL_API void ringcoll_comm_destroy(rc_comm* comm);
/* Poisons the communicator with RC_ABORTED and `reason` on all ranks; calls in flight return at
 * once. */
RINGCOLL_API void ringcoll_comm_abort(rc_comm* comm, const char* reason);
RINGCOLL_API int ringcoll_comm_rank(const rc_comm* comm);
RINGCOLL_API int ringcoll_comm_size(const rc_comm* comm);
/* JSON: name, rank, size, hosts, levels and topology (with where it is known from), network,
 * ring_order, peers (host, pid, NUMA node, groups, transport and port of each),
 * costs (of the links of each level, where they are from, and how long measuring took), and
 * counters (calls, and how many that were started have been ended by a thread that waited:
 * calls_helped; bytes, copies, waits, messages with tags, rejected connections). The string is
 * malloc'ed; free it with ringcoll_free. */
RINGCOLL_API rc_status ringcoll_comm_stats(rc_comm* comm, char** json);

/* Runs a call to its end in the calling thread. */
RINGCOLL_API rc_status ringcoll_run(rc_comm* comm, const rc_call* call);
/* Starts a call. `call` and its arrays are copied; the buffers are borrowed. Who waits without a
 * limit (ringcoll_wait, timeout_s < 0) for it, or for one that was started later, may execute it,
 * as long as no call has a `done`; else the communicator's worker does, a thread that the first
 * call starts. Several are in flight at once; where they share memory they have the effect of one
 * after another, in the order in which they were started. A call that is refused (*request is NULL
 * then) has not started, and its `done` is not called; on a poisoned communicator it starts and
 * ends with the first error. */
RINGCOLL_API rc_status ringcoll_start(rc_comm* comm, const rc_call* call, rc_request** request);
/* Messages with tags, as at rc_message. Since revision 2. ringcoll_send() and ringcoll_recv()
 * return when the message has been sent or received; `info` may be NULL. ringcoll_isend() and
 * ringcoll_irecv() return at once; `message` is copied, its data is borrowed, and the request is
 * waited for and freed as a call's. What is refused (*request is NULL then) has not begun, and its
 * `done` is not called; on a poisoned communicator everything is refused with the first error.
 *
 * Whoever waits for a message of a communicator moves all of its messages meanwhile. Those that
 * nobody waits for are moved by a thread of the library, which the first of them starts. */
RINGCOLL_API rc_status ringcoll_send(rc_comm* comm, const rc_message* message);
RINGCOLL_API rc_status ringcoll_recv(rc_comm* comm, const rc_message* message,
                                     rc_message_info* info);
RINGCOLL_API rc_status ringcoll_isend(rc_comm* comm, const rc_message* message,
                                      rc_request** request);
RINGCOLL_API rc_status ringcoll_irecv(rc_comm* comm, const rc_message* message,
                                      rc_request** request);
/* What a request of ringcoll_irecv() has received, once it has ended, however; in its `done`, too.
 */
RINGCOLL_API rc_status ringcoll_received(rc_request* request, rc_message_info* info);
/* Waits until the request has ended and its `done` has returned (timeout_s < 0: no limit but the
 * call's deadline), and returns its status. *done is 0 and the status RC_OK if timeout_s passed
 * first; the request goes on. So it does if the wait is refused, as in a callback of the same
 * communicator: *done is 0 and the status RC_INVALID_ARGUMENT. Where other calls are in flight it
 * may return a millisecond after the end of this one, which it has spent on those: if all were
 * waited for at once the last time. */
RINGCOLL_API rc_status ringcoll_wait(rc_request* request, double timeout_s, int* done);
/* Frees the handle; if the request has not ended it waits for it. NULL is allowed. */
RINGCOLL_API void ringcoll_request_free(rc_request* request);

/* JSON: version, abi, abi_revision, simd (the instruction set in use), transports (name, help,
 * usable, reason, and what was found of them), schedules (collective, name, summary, cost, where
 * they are offered), knobs (name, type, default, range, owner, agreement, help, value) and costs
 * (the file of RINGCOLL_COSTS, or what is wrong with it). Needs no communicator. The string is
 * malloc'ed; free it with ringcoll_free. */
RINGCOLL_API rc_status ringcoll_info(char** json);
/* What collectives would take on a cluster, by the prices that schedules are chosen by
 * (docs/algorithms.md, "What a schedule costs"). Needs no communicator and looks at no environment.
 *
 * The request, JSON:
 *   collective          "allreduce", …
 *   dtype               "float32", …; optional, then float32
 *   levels              array of at most 16, the smallest first: {"level": "host", "ranks": 4,
 *                       "latency_us", "rank_bytes_per_us", "group_bytes_per_us"}, with the ranks of
 *                       each group, which are a multiple of those of the level before; the last
 *                       level's are all, at most 16,384. Numbers that are left out are those
 *                       assumed where nothing is measured; a group has what one rank has, if that
 *                       is given. The first may be "socket", "numa_node" or "cache", which hosts
 *                       are made up of. That of hosts may have "ports", which the ranks of a host
 *                       share out; what a host sends in all is that of all of them
 *   sizes               array of at most 1,000, bytes of the whole vector, at most 2^50
 *   algorithm, segment_bytes, slots, arena_bytes     as the knobs; optional
 *   combined_bytes_per_us                            of a core, reducing; optional
 *   crowded             true: hosts have more ranks than cores; optional
 *   messages            true: of the row that algorithm names, all messages of each round; rows
 *                       of at most four million
 *
 * A request that cannot be served is RC_INVALID_ARGUMENT; ringcoll_error_message names the field,
 * or the knob that it is as, and *json is not touched. The answer, JSON: collective, dtype, ranks,
 * hosts, levels, slots, and sizes, an array: bytes, chosen (a row), bound_us (what a host's port
 * needs at least; null on one host and of a barrier) and rows: name, microseconds (null: no price,
 * the row has too many steps to walk), piece_bytes, pieces; rows that are not offered there are
 * left out. With messages: rounds, for each an array of from, to, share of the vector, from, to, …
 * The string is malloc'ed; free it with ringcoll_free. */
RINGCOLL_API rc_status ringcoll_simulate(const char* request, char** json);
RINGCOLL_API void ringcoll_free(void* pointer);

#ifdef __cplusplus
}
#endif
#endif /* RINGCOLL_RINGCOLL_H_ */
