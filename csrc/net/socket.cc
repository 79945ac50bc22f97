#include "net/socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace ringcoll {
namespace {

// Keepalive: seconds of silence before the first probe, seconds between probes, and unanswered
// probes after which the peer's host is given up. A watched socket is probed often, so that a probe
// follows soon after a short outage.
constexpr int kKeepIdleSeconds = 10, kKeepIntervalSeconds = 5;
constexpr int kKeepProbes = 3;
constexpr int kWatchIdleSeconds = 2, kWatchIntervalSeconds = 1, kWatchProbes = 10;
constexpr unsigned kUserTimeoutMs = 25000;
static_assert(kHostSilence ==
              std::chrono::seconds(kWatchIdleSeconds + kWatchProbes * kWatchIntervalSeconds));
constexpr int kBacklog = 1024;

template <typename T>
void set_option(int fd, int level, int name, T value) {
  // Sockets that are not TCP refuse the option, which does no harm.
  setsockopt(fd, level, name, &value, sizeof value);
}

bool again(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// False at the deadline.
bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    int ready = poll(&entry, 1, deadline.left_ms());
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw Error(Code::kTransport, errno_text("poll", errno));
    if (deadline.passed()) return false;
  }
}

Address name_of_socket(int fd, int (*call)(int, sockaddr*, socklen_t*), const char* call_name) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  check(call(fd, reinterpret_cast<sockaddr*>(&storage), &length) == 0, Code::kTransport, "{}",
        errno_text(call_name, errno));
  return {reinterpret_cast<sockaddr*>(&storage), length};
}

Fd open_socket(const Address& address) {
  return Fd::made_by(
      [&] { return socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

}  // namespace

void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
}

// TCP_USER_TIMEOUT also runs while the peer's window is closed (tcp(7)).
void wait_for_reader(int fd) { set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0u); }

// TCP_USER_TIMEOUT is off here. With it the kernel would not count probes, and the timeout would
// start anew with each message sent after the host has gone.
void watch_host(int fd) {
  wait_for_reader(fd);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kWatchIdleSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kWatchIntervalSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kWatchProbes);
}

// SIOCOUTQ also counts bytes that are still unsent, as when this host has no network.
std::optional<Duration> unanswered_for(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  int bytes = 0;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
      ioctl(fd, SIOCOUTQ, &bytes) != 0 || bytes == 0)
    return {};
  return std::chrono::milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
}

void reset_on_close(int fd) { set_option(fd, SOL_SOCKET, SO_LINGER, linger{1, 0}); }

void set_nonblocking(int fd) {
  int flags = fcntl(fd, F_GETFL);
  check(flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0, Code::kTransport, "{}",
        errno_text("fcntl(O_NONBLOCK)", errno));
}

Fd listen_on(const Address& address) {
  Fd fd = open_socket(address);
  auto require = [&](bool done, const char* call) {
    check(done, Code::kTransport, "listening on {}: {}", address.text(), errno_text(call, errno));
  };
  require(static_cast<bool>(fd), "socket");
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  require(bind(fd.get(), address.get(), address.length()) == 0, "bind");
  require(listen(fd.get(), kBacklog) == 0, "listen");
  return fd;
}

bool is_own_address(const Address& address) {
  Fd fd = open_socket(address);
  return fd && bind(fd.get(), address.with_port(0).get(), address.length()) == 0;
}

Address local_address(int fd) { return name_of_socket(fd, getsockname, "getsockname"); }
Address peer_address(int fd) { return name_of_socket(fd, getpeername, "getpeername"); }

Fd begin_connect(const Address& address, int* error) {
  Fd fd = open_socket(address);
  bool begun =
      fd && (connect(fd.get(), address.get(), address.length()) == 0 || errno == EINPROGRESS);
  *error = begun ? 0 : errno;
  return begun ? std::move(fd) : Fd();
}

int end_connect(int fd, const Address& address) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return error;
  // If nobody listens at a port of the ephemeral range, the kernel may give that port to this very
  // socket, which then connects to itself.
  if (local_address(fd).text() == address.text()) return ECONNREFUSED;
  tune(fd);
  return 0;
}

Fd try_connect(const Address& address, Deadline deadline, int* error) {
  Fd fd = begin_connect(address, error);
  if (fd)
    *error = wait_for(fd.get(), POLLOUT, deadline) ? end_connect(fd.get(), address) : ETIMEDOUT;
  return *error == 0 ? std::move(fd) : Fd();
}

void send_all(int fd, const void* data, size_t bytes, Deadline deadline, const std::string& link) {
  auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      next += sent;
      bytes -= static_cast<size_t>(sent);
      continue;
    }
    if (errno == EINTR) continue;
    check(again(errno), Code::kTransport, "{}: {}", link, errno_text("send", errno));
    check(wait_for(fd, POLLOUT, deadline), Code::kTimeout,
          "{}: the peer took no data before the deadline", link);
  }
}

size_t try_recv_some(int fd, void* data, size_t bytes, const std::string& link) {
  ssize_t got = recv(fd, data, bytes, MSG_DONTWAIT);
  check(got != 0, Code::kTransport, "{}: closed by the peer", link);
  if (got > 0) return static_cast<size_t>(got);
  check(again(errno) || errno == EINTR, Code::kTransport, "{}: {}", link,
        errno_text("recv", errno));
  return 0;
}

size_t recv_some(int fd, void* data, size_t bytes, Deadline deadline, const std::string& link) {
  for (;;) {
    ssize_t got = recv(fd, data, bytes, MSG_DONTWAIT);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == EINTR) continue;
    check(again(errno), Code::kTransport, "{}: {}", link, errno_text("recv", errno));
    check(wait_for(fd, POLLIN, deadline), Code::kTimeout, "{}: no answer before the deadline",
          link);
  }
}

void recv_all(int fd, void* data, size_t bytes, Deadline deadline, const std::string& link) {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    size_t got = recv_some(fd, next, bytes, deadline, link);
    check(got > 0, Code::kTransport, "{}: closed by the peer", link);
    next += got;
    bytes -= got;
  }
}

}  // namespace ringcoll
