/* ringcoll: tables of parameters. Rows of numbers lie in the memory of servers, clients push to
 * them and pull them, and a rule (ringcoll.h) says what a push does to a row. Since revision 3 of
 * the C ABI; errors, threads, fork and struct_size are as ringcoll.h says, agents are those of
 * remote.h.
 *
 * A table is described by JSON:
 *
 *   {"name": "embedding", "dtype": "float32", "row_shape": [64], "rule": {"rule": "adagrad",
 *    "lr": 0.1}, "staleness": 0, "max_rows": 1000000, "evict": "age",
 *    "initial": {"kind": "uniform", "low": -0.1, "high": 0.1, "seed": 1}}
 *
 * "row_shape" makes a sparse table, which has a row for any int64 that is made with its first push.
 * "shape" in its place makes a dense one, of which each call concerns the whole tensor. It is cut
 * into rows of "stretch" indices of its leading axis. "max_rows" is for each shard; a full one
 * gives up the row whose last use is the longest ago ("age"), or that is used least ("use").
 *
 * A table consists of shards, whose number never changes. Each is led by one server; others may be
 * its backups. A push is acknowledged when all backups have done what it asks for. Who leads what
 * is the caller's to decide, in ascending epochs: this header has what one server and one client
 * do. The store of the Python package decides it for a whole job (docs/parameters.md).
 *
 * Consistency is one integer. A worker counts its steps by clocks, from 0 on: it pulls, pushes, and
 * finishes the clock. A clock is complete when all workers have finished it. With "staleness" s, a
 * pull at clock c waits until all clocks below c - s are complete. With 0, the pushes of a clock
 * are applied as one when it is complete, in ascending order of clients: that equals an allreduce
 * and one step. Without "staleness" no pull waits. With "quorum" and "grace_s", a clock that so
 * many workers have finished is complete after that time. */
#ifndef RINGCOLL_TABLES_H_
#define RINGCOLL_TABLES_H_

#include "ringcoll/remote.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rc_table_server rc_table_server;
typedef struct rc_table_client rc_table_client;

/* A table is named by `uid`, any text that no other table ever has. */

/* Checks a description. *json, which is to be freed with ringcoll_free, is {"table": the
 * description with all fields, "state_slots": how many arrays of state a row has, "cuts": of a
 * dense table, for each shard [the first index of the leading axis, how many]}. */
RINGCOLL_API rc_status ringcoll_table_describe(const char* table, int64_t shards, char** json);

/* Opens a server, with a thread of its own. The agent may be closed before it. */
RINGCOLL_API rc_status ringcoll_table_server_open(rc_agent* agent, rc_table_server** server);
/* Ends it. Its shards are gone. NULL is allowed. */
RINGCOLL_API void ringcoll_table_server_close(rc_table_server* server);
/* Makes a line with a client, from what ringcoll_table_client_offer() or
 * ringcoll_table_server_offer() of another server has written. A line that the client has had ends.
 * Writes what the other end needs to `answer`; *answer_bytes is its room before, 1,024 are enough,
 * and its length after. */
RINGCOLL_API rc_status ringcoll_table_server_accept(rc_table_server* server, int64_t client,
                                                    const void* offer, size_t offer_bytes,
                                                    void* answer, size_t* answer_bytes);
/* The client has ended for ever: its line ends, and it is no worker any more. */
RINGCOLL_API rc_status ringcoll_table_server_drop(rc_table_server* server, int64_t client);
/* The client was not heard for long: its line ends, and it is no worker any more. It may come back,
 * and what it sends again is not applied twice. */
RINGCOLL_API rc_status ringcoll_table_server_leave(rc_table_server* server, int64_t client);
/* Makes a shard with the rows that a new table has, and these workers at clock 0. It answers nobody
 * until it is led. Nothing happens if it is there. 1 to 1,024 shards. */
RINGCOLL_API rc_status ringcoll_table_server_host(rc_table_server* server, const char* uid,
                                                  const char* table, uint32_t shard, int64_t shards,
                                                  const int64_t* workers, int64_t worker_count);
/* The same with rows that ringcoll_table_server_save() has written, in place of new ones; `saved`
 * are its `bytes` bytes, and `json` what it has said of them. */
RINGCOLL_API rc_status ringcoll_table_server_host_saved(rc_table_server* server, const char* uid,
                                                        const char* table, uint32_t shard,
                                                        int64_t shards, const int64_t* workers,
                                                        int64_t worker_count, const void* saved,
                                                        size_t bytes, const char* json);
/* Copies the rows of a shard that is led here to new memory, which is to be freed with
 * ringcoll_release(): one after another the ids (int64; none if the table is dense), counts
 * (float64 [rows, 4]: pushes, the sum of their weights, uses, last use), values, and each array of
 * state (float64 for float64 values, else float32), all in ascending order of ids. *json, which is
 * to be freed with ringcoll_free, is {"rows", "rule"}. RC_GONE: another server leads it. */
RINGCOLL_API rc_status ringcoll_table_server_save(rc_table_server* server, const char* uid,
                                                  uint32_t shard, void** memory, size_t* bytes,
                                                  char** json);
/* Gives a shard up. */
RINGCOLL_API rc_status ringcoll_table_server_unhost(rc_table_server* server, const char* uid,
                                                    uint32_t shard);
/* The server leads the shard from now on, and these servers are its backups. One that has not got
 * the shard from this server is sent it. Each must have a line, and be told ..._host(). */
RINGCOLL_API rc_status ringcoll_table_server_lead(rc_table_server* server, const char* uid,
                                                  uint32_t shard, int64_t epoch,
                                                  const int64_t* backups, int64_t backup_count);
/* The server is a backup of the shard from now on, and takes nothing from servers that have led it
 * in an epoch below this one: the first of the server that leads it now. */
RINGCOLL_API rc_status ringcoll_table_server_follow(rc_table_server* server, const char* uid,
                                                    uint32_t shard, int64_t epoch);
/* Until `monotonic_s`, in seconds of CLOCK_MONOTONIC, no other server can have been told to lead
 * what this one leads. After that this server answers clients as if one had, except on shards
 * without backups. Without this call there is no end. */
RINGCOLL_API rc_status ringcoll_table_server_serve_until(rc_table_server* server,
                                                         double monotonic_s);
/* A line to another server, for backups. `other` is a number above 0 of the caller's. */
RINGCOLL_API rc_status ringcoll_table_server_offer(rc_table_server* server, int64_t other,
                                                   void* offer, size_t* offer_bytes);
RINGCOLL_API rc_status ringcoll_table_server_complete(rc_table_server* server, int64_t other,
                                                      const void* answer, size_t answer_bytes);
RINGCOLL_API rc_status ringcoll_table_server_part(rc_table_server* server, int64_t other);
/* What has happened since the last call, as a JSON array of [kind, uid, shard, epoch, server]:
 * "installed", a backup has the shard; "failed", a backup could not do what the shard did, and is
 * none any more; "deposed", a backup says that another server leads, so this one answers nobody
 * until ..._lead() (server is 0); "parted", the line to a server broke (uid is ""). Free it with
 * ringcoll_free. */
RINGCOLL_API rc_status ringcoll_table_server_events(rc_table_server* server, char** json);
/* Describes the server as JSON: "clients", the number of lines to it; "shards", an array of {"uid",
 * "shard", "role": "idle", "leads" or "follows", "epoch", "backups", "rows", "bytes": of their
 * values, "pushes", "pulls", "pushed_bytes", "pulled_bytes": since the shard is here, "nan": values
 * of pushes, "evicted": rows, "late": pushes whose clock was complete without them, "failed":
 * updates of rows by a custom rule, "rule": the name of the rule, "clock": the first that is not
 * complete, "workers": client -> its clock}. Free it with ringcoll_free. */
RINGCOLL_API rc_status ringcoll_table_server_stats(rc_table_server* server, char** json);

/* Opens a client. `id`: no other client of any table ever has it. */
RINGCOLL_API rc_status ringcoll_table_client_open(rc_agent* agent, int64_t id,
                                                  rc_table_client** client);
/* Ends all calls with RC_ABORTED. NULL is allowed. */
RINGCOLL_API void ringcoll_table_client_close(rc_table_client* client);
/* A line to a server, as between servers. ..._part() says that the server is lost or not needed:
 * what it has not answered is sent to the next one. */
RINGCOLL_API rc_status ringcoll_table_client_offer(rc_table_client* client, int64_t server,
                                                   void* offer, size_t* offer_bytes);
RINGCOLL_API rc_status ringcoll_table_client_complete(rc_table_client* client, int64_t server,
                                                      const void* answer, size_t answer_bytes);
RINGCOLL_API rc_status ringcoll_table_client_part(rc_table_client* client, int64_t server);
/* Makes a table known. Nothing happens if it is. */
RINGCOLL_API rc_status ringcoll_table_client_table(rc_table_client* client, const char* uid,
                                                   const char* table, int64_t shards);
/* Says which server leads each shard; 0: unknown, calls wait; -1: lost, calls end with RC_GONE. */
RINGCOLL_API rc_status ringcoll_table_client_route(rc_table_client* client, const char* uid,
                                                   const int64_t* servers, int64_t shards);
/* *json is {"tables": uids of those with calls that cannot go on, for want of a line or of a server
 * that leads: tell ..._route(); "parted": servers whose lines have broken since the last call}.
 * Free it with ringcoll_free. To be called several times a second. */
RINGCOLL_API rc_status ringcoll_table_client_astray(rc_table_client* client, char** json);

typedef enum rc_table_call_kind {
  RC_TABLE_ROWS = 0,  /* a push, a pull, or a push and then a pull */
  RC_TABLE_TICK = 2,  /* the worker finishes `clock` */
  RC_TABLE_JOIN = 3,  /* the client becomes a worker at the current clock */
  RC_TABLE_RULE = 6,  /* `values` is JSON: another rule of the table, or other parameters. Values
                         stay, and so does what the same rule keeps of rows with as many arrays of
                         state; otherwise that begins anew. Nothing happens if the rule is equal */
  RC_TABLE_ASSIGN = 8 /* sets the values of rows at once, past rule and clocks; what the rule keeps
                         of rows stays. Of ids that occur more than once the last one is taken */
} rc_table_call_kind;

/* Calls of a client on one table are carried out in the order in which they were started, each
 * once, whatever happens to servers. */
typedef struct rc_table_call {
  size_t struct_size;
  const char* uid;
  rc_table_call_kind kind;
  const int64_t* ids; /* of a sparse table: of the rows, copied. Rows of one push with the same id
                         are added up, or the last one is taken if the rule is "assign" without
                         "combine": "sum" */
  int64_t id_count;
  int32_t pushes, pulls; /* 0 or 1; of RC_TABLE_ROWS one is 1 at least */
  rc_dtype dtype;        /* of `values` */
  const void* values;    /* one row after another; borrowed until the call has ended */
  size_t value_bytes;
  double weight; /* of the push, for the rule "weighted_average"; 0 = 1 */
  void* out; /* gets the rows, in the table's type; borrowed until the call has ended. A row that
                was never pushed has its initial values */
  size_t out_bytes;
  int32_t has_clock; /* the client is a worker, and at `clock` */
  int64_t clock;
  int64_t* current; /* gets the latest clock of the shards that is not complete; may be NULL */
  rc_done_fn done;  /* may be NULL; may start calls, and must not wait */
  void* done_state;
  int32_t attended; /* 1: the caller waits for the request at once. Else a thread of the client sees
                       to it that the call makes progress */
} rc_table_call;

/* Starts a call. `call` and `ids` are copied. Wait for and free the request as that of a call.
 * Errors: RC_INVALID_ARGUMENT, RC_GONE (the shard is lost with all of its servers), RC_REFUSED (a
 * server has no memory left), RC_ABORTED. */
RINGCOLL_API rc_status ringcoll_table_start(rc_table_client* client, const rc_table_call* call,
                                            rc_request** request);

/* ---- rules of programs, which run in the servers of a process. Such a rule is {"rule": "custom",
 * "maker": a name, "data": a text}. Each shard has its own, which may keep whatever it wants. It
 * must do the same wherever it is called the same way, since each backup has one too, and takes no
 * weights. Pushes to a row that count as one are added up. A dense table with such a rule is one
 * row, with id 0, unless it has a "stretch" of its own or was made with another rule.
 *
 * A process without the maker refuses to host such a shard with RC_INVALID_ARGUMENT. The functions
 * are called by the threads of servers, one thread at a time for each rule, and must not wait for
 * these servers. One that fails returns another status than RC_OK and may write a text to `error`,
 * which has RC_RULE_ERROR_ROOM bytes. */
#define RC_RULE_ERROR_ROOM 1024
/* Makes a rule of its "data", or of what rc_rule_save_fn has given, unless that was empty. */
typedef rc_status (*rc_rule_make_fn)(void* state, const char* data, size_t data_bytes, void** rule,
                                     char* error);
/* Changes a value of `count` elements by a push of as many. After an error the row stays as it was,
 * and so do all other rows of the push, whose call ends with that error. At the end of a clock
 * (staleness 0) only this row stays as it was; the error is logged once by each shard, and counted
 * as "failed". */
typedef rc_status (*rc_rule_apply_fn)(void* rule, int64_t id, rc_dtype dtype, void* value,
                                      int64_t count, rc_dtype push_dtype, const void* push,
                                      char* error);
/* Describes the rule as it is now, for a backup. *data is malloc'ed. */
typedef rc_status (*rc_rule_save_fn)(void* rule, char** data, size_t* data_bytes, char* error);
typedef void (*rc_rule_drop_fn)(void* rule);
/* From now on, servers of this process make the rules of this maker so. */
RINGCOLL_API rc_status ringcoll_table_rules(const char* maker, rc_rule_make_fn make,
                                            rc_rule_apply_fn apply, rc_rule_save_fn save,
                                            rc_rule_drop_fn drop, void* state);

#ifdef __cplusplus
}
#endif
#endif /* RINGCOLL_TABLES_H_ */
