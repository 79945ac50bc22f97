#include "mesh/line.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/error.h"
#include "base/log.h"

namespace ringcoll::lifeline {

void send_on(Line& line, const std::string& message) {
  if (!line.fd || line.goodbye || line.mute) return;
  ssize_t sent = ::send(line.fd.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(message.size())) return;
  line.mute = sent > 0;
  // A closed line is noticed, and reported, by who reads it.
  log_debug("a message of {} bytes on a lifeline is lost: {}", message.size(),
            sent < 0 ? errno_text("send", errno) : "the socket is full");
}

}  // namespace ringcoll::lifeline
