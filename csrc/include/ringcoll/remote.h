/* ringcoll: memory with an address. One process registers memory, tells others where it is as
 * opaque bytes, and they read and write it without a call of its own (one-sided copies, as of
 * RDMA). Since revision 3 of the C ABI; errors, threads, fork and struct_size are as ringcoll.h
 * says.
 *
 * An agent is what a process needs for that. Agents are equals, have no ranks, and come and go:
 * that one is lost concerns only those who copy to or from it. Who may copy: whoever knows the key
 * of a door of the owner, and has the handle of a region. A handle has a random secret, so it
 * cannot be guessed.
 *
 * A copy takes the shortest way there is. Memory of ringcoll_allocate() is mapped by other
 * processes of the host, other memory is copied by the kernel (process_vm_readv(2), where it is
 * allowed), that of other hosts by RDMA where both have it, and otherwise the owner's thread serves
 * over TCP.
 *
 * Errors besides those of ringcoll.h: RC_GONE (the region was closed, or another process is where
 * its owner was), RC_PEER_LOST (the owner has ended), RC_REFUSED (a wrong key, or a region that is
 * not writable), RC_INVALID_ARGUMENT (no handle, or not in the region), RC_TIMEOUT. After an error
 * of a read, the destination has unspecified bytes; after one of a write, the region has. No copy
 * ever touches memory outside its region. An error concerns its copy alone. */
#ifndef RINGCOLL_REMOTE_H_
#define RINGCOLL_REMOTE_H_

#include "ringcoll/ringcoll.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rc_agent rc_agent;
typedef struct rc_region rc_region; /* memory of this process that others may use */
typedef struct rc_remote rc_remote; /* a region of any process, known by its handle */

typedef struct rc_agent_options {
  size_t struct_size;
  double timeout_s; /* of copies that give none; 0 = RINGCOLL_TIMEOUT_S */
} rc_agent_options;

/* Opens an agent. `options` may be NULL. Its doors listen on the interfaces of RINGCOLL_INTERFACE.
 */
RINGCOLL_API rc_status ringcoll_agent_open(const rc_agent_options* options, rc_agent** agent);
/* The same, and opens a door for the ranks of the communicator's job, whose key they have in
 * common. Not collective. The agent outlives the communicator. */
RINGCOLL_API rc_status ringcoll_comm_agent(rc_comm* comm, const rc_agent_options* options,
                                           rc_agent** agent);
/* Says goodbye to all peers, ends copies in flight with RC_ABORTED, and frees the agent. Its
 * regions are closed, but must still be freed by ringcoll_region_close(). Must not run beside other
 * calls on the agent, nor in a `done` of a copy. NULL is allowed. */
RINGCOLL_API void ringcoll_agent_close(rc_agent* agent);
/* A random number that no other agent has. 0 if agent is NULL. */
RINGCOLL_API uint64_t ringcoll_agent_id(const rc_agent* agent);
/* Opens a door: admits whoever knows `key` under `name`, on `port` of all interfaces, or on a free
 * one if it is 0. The agent also uses the key to come in at others. *json is an array of addresses,
 * "ringcoll://10.0.0.5:4711/name", those for other hosts first; free it with ringcoll_free. The
 * same again does nothing. `name`: 1 to 128 characters, without / : @ and blanks. At most four
 * doors. */
RINGCOLL_API rc_status ringcoll_agent_admit(rc_agent* agent, const char* name, const char* key,
                                            uint16_t port, char** json);
/* Describes the agent as JSON: id; host, equal for agents of one host; leaf, the names of the
 * switches above the host ("spine1.leaf3"), as RINGCOLL_TOPOLOGY says; addresses, regions, links;
 * served: bytes that this process has copied to or from each other agent, by its id in hexadecimal;
 * by: the same bytes, by how they have travelled (host, tcp, rdma); answered: bytes of its regions
 * that its thread has served to others. */
RINGCOLL_API rc_status ringcoll_agent_stats(rc_agent* agent, char** json);

/* Memory that is cheap to share: zeroed, aligned to 64 bytes at least, and mapped by other
 * processes of the host when they copy from it. Its pages are allocated when they are first
 * touched. */
RINGCOLL_API rc_status ringcoll_allocate(size_t bytes, void** memory);
/* Frees it. Close its regions before. NULL is allowed. */
RINGCOLL_API rc_status ringcoll_release(void* memory);

/* Makes `bytes` bytes of the caller's memory a region, which others may read, and write if
 * `writable`. The memory must stay valid until ringcoll_region_close() has returned RC_OK. */
RINGCOLL_API rc_status ringcoll_register(rc_agent* agent, void* memory, size_t bytes, int writable,
                                         rc_region** region);
/* Writes the region's handle to `handle`, which has room for *bytes bytes; 1,024 are enough. Then
 * *bytes is its length, also with RC_TOO_LONG. The handle knows the doors that are open now. */
RINGCOLL_API rc_status ringcoll_region_handle(rc_region* region, void* handle, size_t* bytes);
/* Takes the oldest notice of a write (rc_copy) to the region; waits for one at most `timeout_s`
 * seconds (RC_TIMEOUT). */
RINGCOLL_API rc_status ringcoll_region_notice(rc_region* region, double timeout_s, uint64_t* value);
/* Closes the region: later copies get RC_GONE. Waits until those that run have ended, at most
 * `timeout_s` seconds. RC_TIMEOUT: a process of this host is stopped in the middle of a write; then
 * the memory is still in use, and the call is to be repeated. Otherwise the region is freed. NULL
 * is allowed. */
RINGCOLL_API rc_status ringcoll_region_close(rc_region* region, double timeout_s);

/* Reads a handle. Needs no agent, and connects to nobody. */
RINGCOLL_API rc_status ringcoll_attach(const void* handle, size_t bytes, rc_remote** remote);
/* Frees it. Copies in flight may still use it. NULL is allowed. */
RINGCOLL_API void ringcoll_detach(rc_remote* remote);
RINGCOLL_API uint64_t ringcoll_remote_bytes(const rc_remote* remote);

/* Where the bytes of a copy lie. Passed in arrays, so it never grows. */
typedef struct rc_source {
  const rc_remote* region;
  uint64_t offset;  /* of the first byte in the region */
  int64_t distance; /* any number: among the sources of one copy, the nearest are used while there
                       are any */
} rc_source;
/* One copy. Passed in arrays, so it never grows. */
typedef struct rc_copy {
  void* local; /* of this process; only read by a write */
  uint64_t bytes;
  const rc_source* sources; /* for a read, alternatives with the same bytes; equally near ones share
                               it, and if one fails, the others go on. For a write, one target */
  int64_t source_count;
  int32_t writes;     /* 0: reads from a source to `local`; 1: writes `local` to the target */
  int32_t has_notice; /* of a write: gives the region `notice` after the bytes */
  uint64_t notice;
} rc_copy;
/* Copies in flight together, in no order. Ends when all have ended, or one has failed. */
typedef struct rc_copies {
  size_t struct_size;
  const rc_copy* copies;
  int64_t count;
  double timeout_s; /* 0 = that of the agent */
  rc_done_fn done; /* for ringcoll_start_copies, may be NULL; ringcoll_copy refuses it. It may start
                      copies and must not wait for any */
  void* done_state;
  rc_interrupted_fn interrupted; /* for ringcoll_copy, may be NULL; asked while it waits for other
                                    hosts */
  void* interrupted_state;
} rc_copies;

/* Makes the copies and returns when all have ended. */
RINGCOLL_API rc_status ringcoll_copy(rc_agent* agent, const rc_copies* copies);
/* Starts the copies; a thread of the agent makes those on this host. `copies` and its arrays are
 * copied, `local` is borrowed until the request has ended. Wait for and free the request as that of
 * a call. */
RINGCOLL_API rc_status ringcoll_start_copies(rc_agent* agent, const rc_copies* copies,
                                             rc_request** request);

/* Messages between agents, for those who need more than copies: in order on each connection, at
 * most 64 MiB each. */
typedef enum rc_event_kind {
  RC_EVENT_NONE = 0,    /* nothing has come in time */
  RC_EVENT_OPENED = 1,  /* another agent has dialled this one */
  RC_EVENT_MESSAGE = 2, /* data: the message */
  RC_EVENT_CLOSED = 3   /* data: "goodbye"; "refused": the process has ended; "silent": it has not
                           answered for 1.5 s; "lost": the connection broke for another reason */
} rc_event_kind;
typedef struct rc_event {
  size_t struct_size;
  rc_event_kind kind;
  uint64_t connection;
  void* data; /* malloc'ed; free it with ringcoll_free. Ends with a zero that does not count */
  size_t bytes;
} rc_event;

/* Connects to the agent at `address` ("ringcoll://10.0.0.5:4711/name"), whose key this agent knows
 * by ringcoll_agent_admit(). RC_REFUSED: the key is wrong. RC_PEER_LOST: nobody listens there.
 * RC_TIMEOUT: no answer. RC_TRANSPORT: the connection was closed in the middle of the proof. */
RINGCOLL_API rc_status ringcoll_agent_dial(rc_agent* agent, const char* address, double timeout_s,
                                           uint64_t* connection);
/* Queues a message, which is copied. RC_PEER_LOST: the connection has ended. RC_TRANSPORT: the peer
 * takes nothing, and 256 MiB wait for it. */
RINGCOLL_API rc_status ringcoll_agent_send(rc_agent* agent, uint64_t connection, const void* data,
                                           size_t bytes);
/* Takes the next event; waits for one at most `timeout_s` seconds. */
RINGCOLL_API rc_status ringcoll_agent_receive(rc_agent* agent, double timeout_s, rc_event* event);
/* Ends the connection with a goodbye. No event comes of it any more. */
RINGCOLL_API void ringcoll_agent_hang_up(rc_agent* agent, uint64_t connection);

#ifdef __cplusplus
}
#endif
#endif /* RINGCOLL_REMOTE_H_ */
