// What a message costs by either way through memory: two_copies
//
// For messages of several sizes the microseconds, the best of many, that it takes to copy one out
// of another process's memory (process_vm_readv), with nothing, one place or two places of 8 bytes
// besides, and within this process (memcpy): what the kernel adds to a copy is the difference. All
// memory has been used before and, where it is not too large, lies in this core's cache. The other
// process sleeps, so a machine that others use does no harm.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { kMostBytes = 4 << 20, kMostTries = 4000, kLeastTries = 50, kPlaces = 3 };
static const double kBytesOfTries = 2e9;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void* memory_of(size_t bytes, int content) {
  void* memory = malloc(bytes);
  if (!memory) fail("two_copies: no memory");
  return memset(memory, content, bytes);
}

// A child with the same memory, its own copy of it.
static pid_t fork_sleeper(char* memory, uint64_t* word) {
  int ready[2];
  char byte = 0;
  if (pipe(ready) != 0) fail("two_copies: no pipe");
  pid_t child = fork();
  if (child < 0) fail("two_copies: no process");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(memory, 3, kMostBytes);
    *word = 3;
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
  }
  if (read(ready[0], &byte, 1) != 1) fail("two_copies: the other process did not start");
  return child;
}

// With `places` 0 by memcpy; else so many places are read, the first of `bytes`.
static double once(pid_t other, int places, size_t bytes, char* from, char* to, uint64_t* word) {
  uint64_t words[kPlaces] = {0};
  struct iovec here[kPlaces] = {{to, bytes}}, there[kPlaces] = {{from, bytes}};
  for (int i = 1; i < kPlaces; i++) {
    here[i] = (struct iovec){&words[i], sizeof *words};
    there[i] = (struct iovec){word, sizeof *words};
  }
  double begun = now();
  if (places == 0)
    memcpy(to, from, bytes);
  else if (process_vm_readv(other, here, (unsigned long)places, there, (unsigned long)places, 0) <
           0)
    fail("two_copies: process_vm_readv is refused");
  return now() - begun;
}

static double best(pid_t other, int places, size_t bytes, char* from, char* to, uint64_t* word) {
  double found = 1e9;
  for (int i = 0; i < kMostTries && (i < kLeastTries || i * (double)bytes < kBytesOfTries); i++) {
    double seconds = once(other, places, bytes, from, to, word);
    if (seconds < found) found = seconds;
  }
  return found * 1e6;
}

int main(void) {
  static const size_t sizes[] = {8,        4 << 10,   8 << 10,   16 << 10, 32 << 10,
                                 64 << 10, 128 << 10, 256 << 10, 1 << 20,  kMostBytes};
  char* from = memory_of(kMostBytes, 1);
  char* to = memory_of(kMostBytes, 2);
  uint64_t* word = memory_of(sizeof *word, 1);
  pid_t other = fork_sleeper(from, word);
  printf("%9s %10s %10s %10s %10s\n", "bytes", "read", "and one", "and two", "memcpy");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    printf("%9zu", sizes[i]);
    for (int places = 1; places <= kPlaces; places++)
      printf(" %10.2f", best(other, places, sizes[i], from, to, word));
    printf(" %10.2f\n", best(other, 0, sizes[i], from, to, word));
  }
  kill(other, SIGKILL);
  return 0;
}
