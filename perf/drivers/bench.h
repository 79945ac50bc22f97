// What every native program under perf/ shares: it joins its job, then serves the harness.
//
// A rank is a client of the harness's UNIX socket and sleeps in read() between commands, so that a
// job which is not being measured uses no processor. Commands and answers are lines:
//
//   rank -> harness   hello <rank> <pid>
//   harness -> rank   run <bytes> <batches> <calls>
//   rank -> harness   times <seconds of batch 1> <seconds of batch 2> ...
//   harness -> rank   memory
//   rank -> harness   memory <peak resident KiB since the last such command> <KiB of the buffers>
//   harness -> rank   quit, or the end of the stream: the rank ends
//   rank -> harness   error <text>, before it exits
//
// A batch is a barrier, then `calls` allreduces (float32, sum, out of place) back to back, timed
// as one; the harness takes the slowest rank. A new size allocates and fills the buffers, runs two
// calls that are not timed, and compares every element of the result.
#ifndef RINGCOLL_PERF_DRIVERS_BENCH_H_
#define RINGCOLL_PERF_DRIVERS_BENCH_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct peer {
  int rank, size;
  int streams;  // not 0: of two ranks, each ends with the other's input, not with the sum
  void* state;
  void (*barrier)(void* state);
  void (*allreduce)(void* state, const float* input, float* output, int64_t count);
};

// Ends this process after telling the harness, if it is connected, and standard error why.
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char* format, ...);

// Forks size - 1 times and returns this process's rank. A child is killed when rank 0 dies.
int fork_ranks(int size);

// Waits for the ranks that this process forked, if any.
void join_ranks(void);

// Ties this process to one CPU, by rank; does nothing where there are fewer CPUs than ranks.
void pin_rank(int rank, int size);

// `text` as a whole number in [least, most]; fails otherwise, naming `what`.
int64_t parse_number(const char* text, int64_t least, int64_t most, const char* what);

// Serves the harness that listens at `socket_path` until it says quit.
void serve(const struct peer* peer, const char* socket_path);

#ifdef __cplusplus
}
#endif
#endif  // RINGCOLL_PERF_DRIVERS_BENCH_H_
