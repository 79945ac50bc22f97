// What every native program under perf/ shares: it joins its job, then serves the harness.
//
// A rank is a client of the harness's UNIX socket and sleeps in read() between commands, so that a
// job which is not being measured uses no processor. Commands and answers are lines:
//
//   rank -> harness   hello <rank>
//   harness -> rank   use <name> [<VARIABLE>=<value> ...]
//   rank -> harness   using
//   harness -> rank   run <bytes> <batches> <calls>
//   rank -> harness   times <seconds of batch 1> <seconds of batch 2> ...
//   harness -> rank   memory
//   rank -> harness   memory <peak resident KiB since the last such command> <KiB of the buffers>
//   harness -> rank   free
//   rank -> harness   freed
//   harness -> rank   describe
//   rank -> harness   described <JSON, or nothing>
//   harness -> rank   quit, or the end of the stream: the rank ends
//   rank -> harness   error <text>, before it exits
//
// A batch is a barrier, then `calls` calls of a collective (float32, sum, out of place) back to
// back, timed as one; the harness takes the slowest rank. A new size allocates and fills the
// buffers, runs two calls (from 64 MiB: one) that are not timed, and compares every element of the
// result. `free` gives the buffers back.
//
// PERF_COLLECTIVE in the environment names the collective: allreduce, which is the default,
// reduce_scatter, allgather, broadcast or alltoall. <bytes> are those of the whole vector: what a
// rank puts into an allreduce, a reduce_scatter or an alltoall, and what it gets of an allgather or
// a broadcast. Of a reduce_scatter it gets its part, into an allgather it puts its part; an
// alltoall moves a part from each rank to each.
//
// A rank may offer several ways to compute, which differ in variables of the environment: `use`
// names the one that the next commands mean, and makes it the first time, with those variables set.
// The way called "-" is there from the start.
//
// PERF_AVERAGE in the environment asks for the average instead of the sum: where the peer has none,
// its sum is multiplied by 1/ranks in place, as its users do. PERF_RANKS=2,3: the program starts
// these ranks only; the others are started on other hosts. PERF_WRITES: each rank writes what it
// puts in before each call, which is not part of the time.
#ifndef RINGCOLL_PERF_DRIVERS_BENCH_H_
#define RINGCOLL_PERF_DRIVERS_BENCH_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum collective { kAllreduce, kReduceScatter, kAllgather, kBroadcast, kAlltoall };

struct peer {
  int rank, size;
  int streams;  // not 0: of two ranks, each ends with the other's input, not with the sum
  void* state;
  void (*barrier)(void* state);
  // What PERF_COLLECTIVE names. `count`: elements of the vector, or of one rank's part where there
  // are parts. `output` is NULL on the root of a broadcast, rank 0.
  void (*call)(void* state, const float* input, float* output, int64_t count);
  int averages;  // not 0: call does what PERF_AVERAGE asks for by itself
  // The state of another way, made with the environment as it is; NULL: there is one way only.
  void* (*open)(void* state);
  // Whether a rank of that way ends with its own input, not with the sum; NULL: none does.
  int (*copies)(void* state);
  // JSON in one line that says what the state is like, to be freed; NULL: nothing is known.
  char* (*describe)(void* state);
};

// Ends this process after telling the harness, if it is connected, and standard error why.
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char* format, ...);

// Forks a process for each rank but the first (of PERF_RANKS, or of `size`) and returns this
// process's rank. A child is killed when the first one dies.
int fork_ranks(int size);

// Waits for the ranks that this process forked, if any.
void join_ranks(void);

// Ties this process to one CPU, by rank; does nothing where there are fewer CPUs than ranks.
void pin_rank(int rank, int size);

// `text` as a whole number in [least, most]; fails otherwise, naming `what`.
int64_t parse_number(const char* text, int64_t least, int64_t most, const char* what);

// What PERF_COLLECTIVE names.
enum collective wanted_collective(void);

// Whether PERF_AVERAGE is set.
int wants_average(void);

// Serves the harness that listens at `socket_path` until it says quit.
void serve(const struct peer* peer, const char* socket_path);

#ifdef __cplusplus
}
#endif
#endif  // RINGCOLL_PERF_DRIVERS_BENCH_H_
