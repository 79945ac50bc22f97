// Whether MSG_ZEROCOPY and SO_BUSY_POLL pay between two processes: rate and CPU time of a stream of
// 128 KiB writes, and the round trip of 64 bytes, each with and without, in turn.
//
//   cc -O2 -o tcp_options perf/drivers/tcp_options.c
//   tcp_options serve ADDRESS        on one host (several clients, one after another)
//   tcp_options measure ADDRESS      on the other, or on the same
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kPort = 7711, kBlock = 128 << 10, kRounds = 9, kTrips = 2000, kBusyPollUs = 50 };
static const long kBytes = 256L << 20;
enum Kind { kStream, kEcho, kEchoBusy };

static char block[kBlock];

static void must(int good, const char* call) {
  if (good) return;
  perror(call);
  exit(1);
}

static double now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void set(int fd, int level, int name, int value, const char* what) {
  must(setsockopt(fd, level, name, &value, sizeof value) == 0, what);
}

static struct sockaddr_in parse(const char* text) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(kPort)};
  must(inet_pton(AF_INET, text, &address.sin_addr) == 1, "address");
  return address;
}

static void serve(const char* text) {
  struct sockaddr_in address = parse(text);
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  set(listener, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  must(bind(listener, (struct sockaddr*)&address, sizeof address) == 0, "bind");
  must(listen(listener, 8) == 0, "listen");
  for (;;) {
    int fd = accept(listener, NULL, NULL);
    must(fd >= 0, "accept");
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
    char kind = 0;
    must(recv(fd, &kind, 1, 0) == 1, "recv");
    if (kind == kEchoBusy) set(fd, SOL_SOCKET, SO_BUSY_POLL, kBusyPollUs, "SO_BUSY_POLL");
    long got = 0;
    for (ssize_t n; (n = recv(fd, block, kBlock, 0)) > 0;) {
      if (kind != kStream) must(send(fd, block, n, MSG_NOSIGNAL) == n, "send");
      got += n;
      if (kind == kStream && got == kBytes) must(send(fd, block, 1, MSG_NOSIGNAL) == 1, "send");
    }
    close(fd);
  }
}

static int dial(const char* text, char kind) {
  struct sockaddr_in address = parse(text);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  must(connect(fd, (struct sockaddr*)&address, sizeof address) == 0, "connect");
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  must(send(fd, &kind, 1, 0) == 1, "send");
  return fd;
}

// Notices that the kernel no longer needs what was sent. Of them, how many were copied after all.
static int reap(int fd, int* outstanding, int wait) {
  int copied = 0;
  while (*outstanding > 0) {
    char control[128];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      must(errno == EAGAIN, "recvmsg(MSG_ERRQUEUE)");
      if (!wait) break;
      usleep(50);
      continue;
    }
    struct cmsghdr* header = CMSG_FIRSTHDR(&message);
    struct sock_extended_err* error = (void*)CMSG_DATA(header);
    int count = error->ee_data - error->ee_info + 1;
    *outstanding -= count;
    if (error->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) copied += count;
  }
  return copied;
}

struct Result {
  double rate, cpu;  // bytes a second, CPU seconds of this end for a GiB
  int copied;        // percent of the writes
};

static struct Result stream(const char* address, int zerocopy) {
  int fd = dial(address, kStream), outstanding = 0, copied = 0, writes = 0;
  if (zerocopy) set(fd, SOL_SOCKET, SO_ZEROCOPY, 1, "SO_ZEROCOPY");
  double start = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
  for (long sent = 0; sent < kBytes;) {
    ssize_t n = send(fd, block, kBlock, MSG_NOSIGNAL | (zerocopy ? MSG_ZEROCOPY : 0));
    if (n < 0 && errno == ENOBUFS) {
      copied += reap(fd, &outstanding, 0);
      continue;
    }
    must(n > 0, "send");
    sent += n;
    writes++;
    if (zerocopy) outstanding++;
    if (outstanding > 64) copied += reap(fd, &outstanding, 0);
  }
  must(recv(fd, block, 1, 0) == 1, "recv");
  copied += reap(fd, &outstanding, 1);
  struct Result result = {kBytes / (now(CLOCK_MONOTONIC) - start),
                          (now(CLOCK_PROCESS_CPUTIME_ID) - cpu) * (1L << 30) / kBytes,
                          100 * copied / writes};
  close(fd);
  return result;
}

static double round_trip(const char* address, int busy) {
  int fd = dial(address, busy ? kEchoBusy : kEcho);
  if (busy) set(fd, SOL_SOCKET, SO_BUSY_POLL, kBusyPollUs, "SO_BUSY_POLL");
  double start = now(CLOCK_MONOTONIC);
  for (int i = 0; i < kTrips; i++) {
    must(send(fd, block, 64, MSG_NOSIGNAL) == 64, "send");
    must(recv(fd, block, 64, MSG_WAITALL) == 64, "recv");
  }
  double seconds = (now(CLOCK_MONOTONIC) - start) / kTrips;
  close(fd);
  return seconds;
}

static int by_value(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}
static double median(double* values) {
  qsort(values, kRounds, sizeof *values, by_value);
  return values[kRounds / 2];
}

int main(int count, char** words) {
  if (count == 3 && !strcmp(words[1], "serve")) serve(words[2]);
  if (count != 3 || strcmp(words[1], "measure")) {
    fprintf(stderr, "usage: tcp_options serve|measure ADDRESS\n");
    return 2;
  }
  double faster[kRounds], cheaper[kRounds], quicker[kRounds], rate[kRounds], trip[kRounds];
  int copied = 0;
  for (int i = 0; i < kRounds; i++) {
    struct Result plain = stream(words[2], 0), zero = stream(words[2], 1);
    double without = round_trip(words[2], 0), with = round_trip(words[2], 1);
    rate[i] = plain.rate / 1e9;
    faster[i] = zero.rate / plain.rate;
    cheaper[i] = plain.cpu / zero.cpu;
    trip[i] = without * 1e6;
    quicker[i] = without / with;
    copied = zero.copied;
  }
  printf(
      "stream %.2f GB/s; with MSG_ZEROCOPY %.2f times as fast, CPU time of the sender %.2f times "
      "less, %d %% copied after all\n",
      median(rate), median(faster), median(cheaper), copied);
  printf("round trip %.1f us; with SO_BUSY_POLL %.2f times as fast\n", median(trip),
         median(quicker));
  return 0;
}
