#include "transport/tcp/stream.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/copy.h"
#include "base/error.h"
#include "net/socket.h"

namespace ringcoll::tcp {
namespace {

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// Errors that mean that the other end is gone, rather than that this end has a problem.
bool means_peer_lost(int error) {
  return error == ECONNRESET || error == EPIPE || error == ECONNABORTED || error == ETIMEDOUT ||
         error == EHOSTUNREACH || error == ENETUNREACH || error == ENOTCONN;
}

}  // namespace

Stream::Stream(Fd fd, Rank peer, std::string link, size_t read_ahead_bytes)
    : fd_(std::move(fd)), peer_(peer), link_(std::move(link)), ahead_(read_ahead_bytes) {
  int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) < 0)
    fail("fcntl(O_NONBLOCK)", errno);
  wait_for_reader(fd_.get());  // a reader may be slow; the lifeline notices the end of its host
  // The kernel gets a message whole, so it need not wait for more. A socket pair of a test is not
  // TCP, and has no such option.
  int on = 1;
  if (::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 &&
      errno != EOPNOTSUPP && errno != ENOPROTOOPT)
    fail("setsockopt(TCP_NODELAY)", errno);
}

void Stream::fail(const char* call, int error) const {
  std::string what = errno_text(call, error) + " " + link_;
  if (means_peer_lost(error))
    throw Error(Code::kPeerLost,
                fmt::format("rank {} has closed the connection or ended, or its host cannot be "
                            "reached: {}",
                            peer_, what),
                peer_);
  throw Error(Code::kTransport, what, peer_);
}

uint64_t Stream::send(std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<uint64_t>(sent);
  if (would_block(errno)) return 0;
  fail("sendmsg", errno);
}

uint64_t Stream::unacknowledged() const {
  int bytes = 0;
  return ::ioctl(fd_.get(), SIOCOUTQ, &bytes) == 0 ? static_cast<uint64_t>(bytes) : 0;
}

uint64_t Stream::take_read_ahead(std::byte* to, uint64_t bytes) {
  uint64_t taken = std::min<uint64_t>(bytes, end_ - begin_);
  if (taken == 0) return 0;
  copy_bytes(to, ahead_.data() + begin_, taken);
  begin_ += taken;
  return taken;
}

uint64_t Stream::receive(std::byte* to, uint64_t bytes) {
  uint64_t taken = take_read_ahead(to, bytes);
  if (taken == bytes) return taken;
  // The same system call also brings what follows: the next header, often with a whole small
  // message.
  iovec parts[2] = {{to + taken, bytes - taken}, {ahead_.data(), ahead_.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  begin_ = end_ = 0;
  ssize_t got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  if (got > 0) {
    uint64_t direct = std::min<uint64_t>(static_cast<uint64_t>(got), bytes - taken);
    end_ = static_cast<uint64_t>(got) - direct;
    return taken + direct;
  }
  if (got < 0 && would_block(errno)) return taken;
  if (got < 0) fail("recvmsg", errno);
  ended_ = true;
  return taken;
}

void Stream::fail_ended() const {
  throw Error(Code::kPeerLost, fmt::format("rank {} closed the connection {}", peer_, link_),
              peer_);
}

uint64_t Stream::discard(uint64_t bytes) {
  std::byte dropped[4096];
  return receive(dropped, std::min<uint64_t>(bytes, sizeof dropped));
}

}  // namespace ringcoll::tcp
