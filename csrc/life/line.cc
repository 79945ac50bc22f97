#include "life/line.h"

#include <fmt/core.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/log.h"

namespace ringcoll::lifeline {
namespace {

// Small beside the few hundred kilobytes that the kernel buffers.
constexpr int kFewUnreadBytes = 32 << 10;
// How long the cause may still take to arrive after a link has broken.
constexpr Duration kGraceOfAnError = std::chrono::milliseconds(100);
// How long a peer may take to answer after it was told of calls that differ from its own.
constexpr Duration kGraceOfAMismatch = std::chrono::milliseconds(300);

}  // namespace

void send_on(Line& line, const std::string& message) {
  if (!line.fd || line.goodbye || line.mute) return;
  ssize_t sent = ::send(line.fd.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(message.size())) return;
  line.mute = sent > 0;
  // The thread that reads a closed line notices and reports it.
  log_debug("a message of {} bytes on a lifeline is lost: {}", message.size(),
            sent < 0 ? errno_text("send", errno) : "the socket is full");
}

bool is_read(const Line& line) {
  int unread = 0;
  return line.fd && ::ioctl(line.fd.get(), SIOCOUTQ, &unread) == 0 && unread < kFewUnreadBytes;
}

std::string why_lost(const std::string& who, int error) {
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN)
    return fmt::format("nothing is heard of {} ({}); its host or the network to it is down", who,
                       errno_text("recv", error));
  return fmt::format(
      "{} has ended without a goodbye ({}); it was killed, or has crashed: see its log, and the "
      "kernel's log for a lack of memory",
      who, error == 0 ? "its lifeline has closed" : errno_text("recv", error));
}

Duration grace_of(const Error& error) {
  switch (error.code()) {
    case Code::kPeerLost:
    case Code::kTransport:
      return kGraceOfAnError;
    case Code::kMismatch:
      return kGraceOfAMismatch;
    default:
      return {};
  }
}

}  // namespace ringcoll::lifeline
